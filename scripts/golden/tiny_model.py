# SPDX-License-Identifier: Apache-2.0
"""Tiny Llama models whose weights are a function of integers. tests/support/tiny_model.h writes the same bytes from C++.

With FNV-1a (64 bits) of the tensor's name:
    key  = mix64(seed ^ fnv1a(name))
    w[i] = offset + ((mix64(key + i) >> 40) / 2^24 - 0.5) * scale     in FP32, then rounded to the checkpoint's type
Norms have offset 1 and scale 0.5; embeddings scale 2; all else scale 0.5: attention is far from uniform and a mistake in
a rotary angle or a mask shows in the logits.
"""

import json

import numpy as np

from logit_rows import MASK, mix64

PROMPTS = 3
PROMPT_TOKENS = 24
GREEDY_TOKENS = 16

BYTES = 256
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]

LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}


def variant(name, seed, dtype, **changes):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 257,
        "eos_token_id": 258,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 512,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "pad_token_id": 259,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        "vocab_size": 320,
    }
    for key, value in changes.items():
        if value == "absent":
            del config[key]
        else:
            config[key] = value
    return {"name": name, "seed": seed, "config": config}


VARIANTS = [
    variant("tiny_base", 1, "bfloat16", vocab_size=512),
    variant("tiny_llama3", 2, "bfloat16", head_dim=24, tie_word_embeddings=False, attention_bias=True,
            rope_scaling=LLAMA3, rope_theta=500000.0),
    # An old-style config: "type" in rope_scaling, no head_dim.
    variant("tiny_linear", 7, "float16", rope_scaling={"factor": 4.0, "type": "linear"}, head_dim="absent",
            tie_word_embeddings=False, intermediate_size=96),
    variant("tiny_mqa", 4, "float32", num_key_value_heads=1, mlp_bias=True, rms_norm_eps=1e-06),
]


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def tensor_shapes(config):
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q_rows = config["num_attention_heads"] * head_dim
    kv_rows = config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    attention = {"q_proj": (q_rows, hidden), "k_proj": (kv_rows, hidden), "v_proj": (kv_rows, hidden),
                 "o_proj": (hidden, q_rows)}
    mlp = {"gate_proj": (ffn, hidden), "up_proj": (ffn, hidden), "down_proj": (hidden, ffn)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for block, parts, bias in (("self_attn", attention, config["attention_bias"]), ("mlp", mlp, config["mlp_bias"])):
            for part, shape in parts.items():
                shapes[f"{prefix}{block}.{part}.weight"] = shape
                if bias:
                    shapes[f"{prefix}{block}.{part}.bias"] = shape[:1]
    return shapes


def tensor_values(seed, name, shape):
    """FP32, before rounding to the checkpoint's type."""
    offset, scale = 0.0, 0.5
    if name.endswith("norm.weight"):
        offset = 1.0
    elif name == "model.embed_tokens.weight":
        scale = 2.0
    key = mix64(seed ^ fnv1a(name))
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        words = mix64(np.arange(count, dtype=np.uint64) + np.uint64(key))
    unit = (words >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
    return (np.float32(offset) + unit * np.float32(scale)).reshape(shape)


def encode(values, dtype):
    """FP32 -> the checkpoint's little-endian bytes; every rounding is to nearest even."""
    if dtype == "float32":
        return values.astype("<f4").tobytes()
    if dtype == "float16":
        return values.astype("<f2").tobytes()
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def decode(data, dtype, shape):
    if dtype == "bfloat16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, "<f4" if dtype == "float32" else "<f2").astype(np.float32).reshape(shape)


def prompt_ids(seed, prompt, vocab):
    key = mix64(seed ^ fnv1a(f"prompt.{prompt}"))
    return [mix64(key + i) % vocab for i in range(PROMPT_TOKENS)]


def byte_alphabet():
    """The printable stand-in of each byte in byte-level BPE: itself where printable, else the next free from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet, free = [], 0x100
    for byte in range(BYTES):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(free))
            free += 1
    return alphabet


def merge_pairs(count):
    """Pairs of the letters etaoinshrdlu; then "Ġ" (a space) before a letter a to z; then pair + letter."""
    letters = "etaoinshrdlu"
    pairs = [(a, b) for a in letters for b in letters]
    triples = [(a + b, c) for a, b in pairs for c in letters]
    spaced = [("Ġ", chr(ord("a") + i)) for i in range(26)]
    merges = pairs + spaced + triples
    if count > len(merges):
        raise ValueError(f"vocabulary too large: {count} merges asked, {len(merges)} known")
    return merges[:count]


def tokenizer(vocab_size):
    """tokenizer.json: 256 bytes, the specials, and merges up to vocab_size, so that every id has a text."""
    tokens = byte_alphabet() + SPECIALS
    merges = merge_pairs(vocab_size - len(tokens))
    tokens += [a + b for a, b in merges]
    added = [
        {"content": text, "id": BYTES + i, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
         "special": True}
        for i, text in enumerate(SPECIALS)
    ]
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "type": "ByteLevel", "use_regex": True}
    return {
        "added_tokens": added,
        "decoder": byte_level,
        "model": {
            "byte_fallback": False,
            "continuing_subword_prefix": None,
            "dropout": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "ignore_merges": False,
            "merges": [f"{a} {b}" for a, b in merges],
            "type": "BPE",
            "unk_token": None,
            "vocab": {token: index for index, token in enumerate(tokens)},
        },
        "normalizer": None,
        "padding": None,
        "post_processor": None,
        "pre_tokenizer": {"pretokenizers": [{"individual_digits": True, "type": "Digits"}, byte_level],
                          "type": "Sequence"},
        "truncation": None,
        "version": "1.0",
    }


def compact_json(value):
    """Sorted keys, no spaces, UTF-8: a text that C++ can write byte for byte."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
