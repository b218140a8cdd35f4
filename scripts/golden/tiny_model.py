# SPDX-License-Identifier: Apache-2.0
"""Tiny models whose weights are a function of integers. tests/support/tiny_model.h writes the same bytes from C++.

With FNV-1a (64 bits) of the tensor's name:
    key  = mix64(seed ^ fnv1a(name))
    w[i] = offset + ((mix64(key + i) >> 40) / 2^24 - 0.5) * scale     in FP32, then rounded to the checkpoint's type
Norms have offset 1 (Gemma's, to which the model adds 1: offset 0) and scale 0.5; embeddings scale 2; all else scale
0.5: attention is far from uniform and a mistake in a rotary angle or a mask shows in the logits.

The matrices of an FP8 checkpoint but for the embedding and the head are
    bits[i]  = mix64(key + i) >> 56, with the NaN codes 0x7F and 0xFF turned to 0x7E and 0xFE
    scale[t] = (1 + (mix64(key of the scale's name + t) >> 62)) / 1024        in FP32, one a tensor or a tile
"""

import json

import numpy as np

from logit_rows import MASK, mix64

PROMPTS = 2
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
FP8_TENSOR = {
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "tensor", "type": "float"}}},
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "quant_method": "compressed-tensors",
}
FP8_TILES = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}


def variant(name, seed, dtype, **changes):
    """A Llama, changed; the value "absent" takes a field out."""
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
        "vocab_size": 288,
    }
    for key, value in changes.items():
        if value == "absent":
            del config[key]
        else:
            config[key] = value
    return {"name": name, "seed": seed, "config": config}


def other(name, seed, dtype, architecture, model_type, **changes):
    """Of another architecture: without Llama's own fields."""
    return variant(name, seed, dtype, architectures=[architecture], model_type=model_type, mlp_bias="absent",
                   **changes)


VARIANTS = [
    variant("tiny_base", 1, "bfloat16", vocab_size=512),
    variant("tiny_llama3", 2, "bfloat16", head_dim=24, tie_word_embeddings=False, attention_bias=True,
            rope_scaling=LLAMA3, rope_theta=500000.0),
    # An old-style config: "type" in rope_scaling, no head_dim.
    variant("tiny_linear", 7, "float16", rope_scaling={"factor": 4.0, "type": "linear"}, head_dim="absent",
            tie_word_embeddings=False, intermediate_size=96),
    variant("tiny_mqa", 4, "float32", num_key_value_heads=1, mlp_bias=True, rms_norm_eps=1e-06),
    variant("tiny_yarn", 8, "float32", rope_theta=500.0, max_position_embeddings=512,
            rope_scaling={"beta_fast": 4.0, "factor": 8.0, "original_max_position_embeddings": 64, "rope_type": "yarn"}),
    # Its prompts go beyond the 16 positions of the unscaled model.
    variant("tiny_dynamic", 9, "float32", max_position_embeddings=16,
            rope_scaling={"factor": 32.0, "rope_type": "dynamic"}),
    other("tiny_mistral", 10, "bfloat16", "MistralForCausalLM", "mistral", attention_bias="absent",
          sliding_window=7, rope_theta=1000000.0, tie_word_embeddings=False),
    # The first layer sees everything.
    other("tiny_qwen2", 11, "bfloat16", "Qwen2ForCausalLM", "qwen2", attention_bias="absent", head_dim="absent",
          max_window_layers=1, sliding_window=5, use_sliding_window=True),
    other("tiny_qwen3", 12, "bfloat16", "Qwen3ForCausalLM", "qwen3", head_dim=32, num_key_value_heads=1,
          sliding_window=None, use_sliding_window=False, tie_word_embeddings=False),
    # Layers 0, 1 and 3 see a window.
    other("tiny_gemma3", 13, "bfloat16", "Gemma3ForCausalLM", "gemma3_text", hidden_act="absent", head_dim=24,
          hidden_activation="gelu_pytorch_tanh", num_hidden_layers=4, query_pre_attn_scalar=20, rms_norm_eps=1e-06,
          rope_local_base_freq=1000.0, rope_scaling={"factor": 8.0, "rope_type": "linear"}, rope_theta=100000.0,
          sliding_window=6, sliding_window_pattern=3, tie_word_embeddings="absent"),
    variant("tiny_fp8_tensor", 14, "bfloat16", quantization_config=FP8_TENSOR),
    # Matrices of two and three tiles, the last ones not full.
    variant("tiny_fp8_tiles", 15, "bfloat16", head_dim=40, hidden_size=160, intermediate_size=272,
            num_hidden_layers=2, quantization_config=FP8_TILES),
]


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def is_gemma(config):
    return config["model_type"].startswith("gemma3")


def is_tied(config):
    return config.get("tie_word_embeddings", is_gemma(config))


def layer_shapes(config):
    """Name behind "model.layers.N." -> shape."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q_rows = config["num_attention_heads"] * head_dim
    kv_rows = config["num_key_value_heads"] * head_dim
    shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    if is_gemma(config):
        shapes |= {"pre_feedforward_layernorm.weight": (hidden,), "post_feedforward_layernorm.weight": (hidden,)}
    if config["model_type"] in ("qwen3", "gemma3_text"):
        shapes |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    qkv_bias = config["model_type"] == "qwen2" or config.get("attention_bias", False)
    for name, shape, bias in (
        ("self_attn.q_proj", (q_rows, hidden), qkv_bias),
        ("self_attn.k_proj", (kv_rows, hidden), qkv_bias),
        ("self_attn.v_proj", (kv_rows, hidden), qkv_bias),
        ("self_attn.o_proj", (hidden, q_rows), config.get("attention_bias", False)),
        ("mlp.gate_proj", (ffn, hidden), config.get("mlp_bias", False)),
        ("mlp.up_proj", (ffn, hidden), config.get("mlp_bias", False)),
        ("mlp.down_proj", (hidden, ffn), config.get("mlp_bias", False)),
    ):
        shapes[name + ".weight"] = shape
        if bias:
            shapes[name + ".bias"] = shape[:1]
    return shapes


def tensor_shapes(config):
    """Of the model, FP8 scales not among them."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not is_tied(config):
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(config).items()}
    return shapes


def tensor_key(seed, name):
    return mix64(seed ^ fnv1a(name))


def words(key, count):
    with np.errstate(over="ignore"):
        return mix64(np.arange(count, dtype=np.uint64) + np.uint64(key))


def tensor_values(config, seed, name, shape):
    """FP32, before rounding to the checkpoint's type."""
    offset, scale = 0.0, 0.5
    if name.endswith("norm.weight"):
        offset = 0.0 if is_gemma(config) else 1.0
    elif name == "model.embed_tokens.weight":
        scale = 2.0
    random = words(tensor_key(seed, name), int(np.prod(shape)))
    unit = (random >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
    return (np.float32(offset) + unit * np.float32(scale)).reshape(shape)


def is_fp8(config, name, shape):
    return "quantization_config" in config and len(shape) == 2 and name.startswith("model.layers.")


def fp8_bits(seed, name, shape):
    bits = (words(tensor_key(seed, name), int(np.prod(shape))) >> np.uint64(56)).astype(np.uint8)
    return np.where((bits & 0x7F) == 0x7F, bits ^ 1, bits).astype(np.uint8).reshape(shape)


def fp8_scales(config, seed, name, shape):
    """(name, FP32 array) of the scales of a matrix."""
    tile = config["quantization_config"].get("weight_block_size")
    full_name = name + ("_scale_inv" if tile else "_scale")
    scale_shape = (-(-shape[0] // tile[0]), -(-shape[1] // tile[1])) if tile else (1,)
    quarter = words(tensor_key(seed, full_name), int(np.prod(scale_shape))) >> np.uint64(62)
    return full_name, ((1 + quarter.astype(np.float32)) / np.float32(1024)).reshape(scale_shape)


def e4m3_values():
    """FP32 of each of the 256 codes."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[(codes & 0x7F) == 0x7F] = np.nan
    return np.where(codes & 0x80, -value, value).astype(np.float32)


def checkpoint(config, seed):
    """name -> (bytes in the file, FP32 that the model computes with, or None for scales)."""
    tensors = {}
    dtype, codes = config["torch_dtype"], e4m3_values()
    for name, shape in tensor_shapes(config).items():
        if not is_fp8(config, name, shape):
            data = encode(tensor_values(config, seed, name, shape), dtype)
            tensors[name] = (data, decode(data, dtype, shape))
            continue
        bits = fp8_bits(seed, name, shape)
        scale_name, scales = fp8_scales(config, seed, name, shape)
        tile = config["quantization_config"].get("weight_block_size", shape)
        spread = np.repeat(np.repeat(scales.reshape(-1, scales.shape[-1]), tile[0], 0), tile[1], 1)
        tensors[name] = (bits.tobytes(), codes[bits] * spread[: shape[0], : shape[1]])
        tensors[scale_name] = (scales.astype("<f4").tobytes(), None)
    return dict(sorted(tensors.items()))


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
