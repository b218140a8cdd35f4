#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns a Llama-architecture GGUF file into a Hugging Face style model directory.

Usage: gguf_to_model_dir.py FILE.gguf OUT_DIR

OUT_DIR must not exist; it is complete on success and absent on failure. It gets config.json, generation_config.json,
model.safetensors (BF16, Hugging Face names), tokenizer.json (byte-level BPE), tokenizer_config.json and
special_tokens_map.json. The same input gives the same bytes on every machine. Needs the packages numpy and gguf.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

# GGUF's name of a pre-tokenizer -> its parts in tokenizer.json.
PRE_TOKENIZERS = {
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}

GLOBAL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class ConversionError(Exception):
    """The file is not what this script can convert; the message says why."""


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader):
        self.fields = {name: field.contents() for name, field in reader.fields.items()}

    def get(self, key, default=None):
        return self.fields.get(key, default)

    def need(self, key):
        if key not in self.fields:
            raise ConversionError(f"the file has no metadata key '{key}'")
        return self.fields[key]


def shortest(value):
    """GGUF keeps FP32; 9.999999747378752e-06 is written as the 1e-05 that it stands for."""
    return float(str(np.float32(value)))


def make_config(meta, tensor_names):
    heads = meta.need("llama.attention.head_count")
    hidden = meta.need("llama.embedding_length")
    for key in meta.fields:
        if key.startswith("llama.rope.scaling") or key.startswith("llama.expert"):
            raise ConversionError(f"'{key}' is not supported")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta.need("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.need("tokenizer.ggml.eos_token_id"),
        "head_dim": meta.get("llama.rope.dimension_count", hidden // heads),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": meta.need("llama.feed_forward_length"),
        "max_position_embeddings": meta.need("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": meta.need("llama.block_count"),
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "pretraining_tp": 1,
        "rms_norm_eps": shortest(meta.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": shortest(meta.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": len(meta.need("tokenizer.ggml.tokens")),
    }


def expected_shapes(config):
    """Name in the model directory -> shape; what the file must hold, no more and no less."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q_rows = config["num_attention_heads"] * config["head_dim"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_rows, hidden),
        "self_attn.k_proj.weight": (kv_rows, hidden),
        "self_attn.v_proj.weight": (kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, q_rows),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for index in range(config["num_hidden_layers"]):
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    return shapes


def hugging_face_name(name):
    if name in GLOBAL_TENSORS:
        return GLOBAL_TENSORS[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdigit() and parts[2] in LAYER_TENSORS:
        return f"model.layers.{int(parts[1])}.{LAYER_TENSORS[parts[2]]}"
    raise ConversionError(f"tensor '{name}' has no place in a Llama model directory")


def split_rotary_halves(weight, heads):
    """GGUF stores the rows of q and k with the two rotary halves of a head interleaved; Hugging Face keeps each whole."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_bf16(values):
    """FP32 -> BF16 bits, round to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if not np.isfinite(values).all():
        raise ConversionError("a weight is not finite")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def convert_tensors(reader, config):
    tensors = {}
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        values = values.reshape([int(size) for size in reversed(tensor.shape)])
        if name.endswith("q_proj.weight"):
            values = split_rotary_halves(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = split_rotary_halves(values, config["num_key_value_heads"])
        tensors[name] = to_bf16(values)
    shapes = expected_shapes(config)
    if set(shapes) != set(tensors):
        raise ConversionError(f"missing or surplus tensors: {sorted(set(shapes) ^ set(tensors))[:5]}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ConversionError(f"tensor '{name}' is {tensors[name].shape}, the metadata say {shape}")
    return tensors


def write_safetensors(path, tensors):
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for name in sorted(tensors):
            out.write(tensors[name].tobytes())


def special_ids(meta):
    control = int(gguf.TokenType.CONTROL)
    return [i for i, kind in enumerate(meta.need("tokenizer.ggml.token_type")) if kind == control]


def added_token(content, special):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": special}


def make_tokenizer(meta):
    if meta.need("tokenizer.ggml.model") != "gpt2":
        raise ConversionError(f"tokenizer model '{meta.need('tokenizer.ggml.model')}' is not byte-level BPE")
    pre = meta.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise ConversionError(f"pre-tokenizer '{pre}' is not known; known: {', '.join(PRE_TOKENIZERS)}")
    if meta.get("tokenizer.ggml.add_bos_token", False):
        raise ConversionError("a tokenizer that adds BOS by itself is not supported")
    tokens = meta.need("tokenizer.ggml.tokens")
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ConversionError("the vocabulary names a token twice")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **added_token(tokens[i], True)} for i in special_ids(meta)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": meta.need("tokenizer.ggml.merges"),
        },
    }


def named_specials(meta):
    tokens = meta.need("tokenizer.ggml.tokens")
    named = {}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = meta.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            named[f"{role}_token"] = tokens[index]
    return named


def make_tokenizer_config(meta):
    tokens = meta.need("tokenizer.ggml.tokens")
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): added_token(tokens[i], True) for i in special_ids(meta)},
        **named_specials(meta),
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta.need("llama.context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if meta.get("tokenizer.chat_template"):
        config["chat_template"] = meta.get("tokenizer.chat_template")
    return config


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(source, out):
    reader = gguf.GGUFReader(source)
    meta = Metadata(reader)
    if meta.need("general.architecture") != "llama":
        raise ConversionError(f"architecture '{meta.need('general.architecture')}' is not llama")
    config = make_config(meta, {tensor.name for tensor in reader.tensors})
    write_safetensors(out / "model.safetensors", convert_tensors(reader, config))
    write_json(out / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(out / "generation_config.json", {"_from_model_config": True, **ids})
    write_json(out / "tokenizer.json", make_tokenizer(meta))
    write_json(out / "tokenizer_config.json", make_tokenizer_config(meta))
    write_json(out / "special_tokens_map.json", named_specials(meta))


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, out = Path(arguments[0]), Path(arguments[1])
    try:
        out.mkdir()
    except OSError as problem:
        print(f"gguf_to_model_dir: cannot make {out}: {problem.strerror}", file=sys.stderr)
        return 1
    done = False
    try:
        convert(source, out)
        done = True
    except (ValueError, IndexError) as problem:
        print(f"gguf_to_model_dir: {source}: not a whole GGUF file ({problem})", file=sys.stderr)
    except (ConversionError, OSError) as problem:
        print(f"gguf_to_model_dir: {source}: {problem}", file=sys.stderr)
    finally:
        if not done:
            shutil.rmtree(out, ignore_errors=True)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
