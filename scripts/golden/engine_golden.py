#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/engine/ from Hugging Face transformers; tests/golden/engine/README.md says what each file holds.

Usage: engine_golden.py [--model DIR] [--out DIR] [--only tiny|smollm2]
Runs on the CPU in a few minutes, in an environment with scripts/golden/requirements.txt.
"""

import argparse
import copy
import hashlib
import platform
import sys
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers

import logit_rows
import prompts
import tiny_model
from golden_file import GoldenWriter, xxh3

ROOT = Path(__file__).resolve().parents[2]
THREADS = 2
GREEDY_TOKENS = 64
TEXTS = ["the other train, at 10:45", " a b  c\n\n\tnoon's <|im_start|>user\nhi<|im_end|>", "Grüße, 日本 🙂", ""]


def environment():
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
        "threads": THREADS,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


@torch.inference_mode()
def forward(model, ids, cache=None):
    """FP32 [tokens][vocab] of the next tokens of a sequence, and the cache after them."""
    # Dynamic scaling turns a whole pass by the angles of its last position: token by token each has its own.
    dynamic = (getattr(model.config, "rope_scaling", None) or {}).get("rope_type") == "dynamic"
    rows = []
    for part in [[token] for token in ids] if dynamic else [ids]:
        output = model(torch.tensor([part]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0].float().numpy())
    return np.concatenate(rows), cache


def all_logits(model, ids):
    """FP32 [tokens][vocab] of one sequence."""
    return forward(model, ids)[0]


def greedy(model, ids, count):
    """`count` tokens after `ids`, through the KV cache; EOS does not stop it. Returns ids and top1 - top2 margins."""
    chosen, margins, cache, step = [], [], None, list(ids)
    for _ in range(count):
        rows, cache = forward(model, step, cache)
        row = rows[-1]
        first, second = logit_rows.top_ids(row, 2)
        chosen.append(int(first))
        margins.append(row[first] - row[second])
        step = [int(first)]
    return chosen, margins


def margins_of(rows):
    pair = np.take_along_axis(rows, logit_rows.top_ids(rows, 2), -1)
    return pair[..., 0] - pair[..., 1]


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load(directory, dtype, attention):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation=attention)
    return model.eval()


def write_smollm2_fp32(directory, out, tokens, reference, model):
    ids = logit_rows.top_ids(reference)
    signs = logit_rows.projection_signs(reference.shape[-1])
    outcome = [greedy(model, row[: prompts.GREEDY_PROMPT_TOKENS], GREEDY_TOKENS) for row in tokens]
    facts = {
        "what": "Logits of SmolLM2-135M-Instruct (BF16 weights) computed in FP32 by Hugging Face transformers",
        "environment": environment(),
        "attention": "eager",
        "model_sha256": {name: sha256_of(directory / name) for name in ("config.json", "model.safetensors")},
        "vocab": reference.shape[-1],
        "greedy_prompt_tokens": prompts.GREEDY_PROMPT_TOKENS,
        "greedy_stops_at_eos": False,
        "prompts": [{"name": name, "text": text} for name, text in prompts.PROMPTS.items()],
    }
    golden = GoldenWriter(facts)
    golden.add("tokens", "u32", tokens)
    golden.add("top_ids", "u16", ids)
    golden.add("top_logits", "f32", np.take_along_axis(reference, ids, -1))
    golden.add("log_sum_exp", "f32", logit_rows.log_sum_exp(reference))
    golden.add("rest_log_sum_exp", "f32", logit_rows.rest_log_sum_exp(reference, ids))
    golden.add("projections", "f32", logit_rows.project(reference, signs))
    golden.add("margins", "f32", margins_of(reference))
    golden.add("greedy_tokens", "u32", [chosen for chosen, _ in outcome])
    golden.add("greedy_margins", "f32", [margins for _, margins in outcome])
    golden.write(out, "smollm2_fp32")


def compare(reference, rows):
    full, bucket = logit_rows.full_kl(reference, rows), logit_rows.bucket_kl(reference, rows)
    same = logit_rows.same_top(reference, rows)
    return {
        "mean_kl": float(full.mean()),
        "max_kl": float(full.max()),
        "mean_bucket_kl": float(bucket.mean()),
        "same_top": float(same.mean()),
        "mean_kl_per_prompt": [float(value) for value in full.mean(axis=-1)],
        "mean_bucket_kl_per_prompt": [float(value) for value in bucket.mean(axis=-1)],
        "same_top_per_prompt": [float(value) for value in same.mean(axis=-1)],
        "max_abs_difference": float(np.abs(reference - rows).max()),
    }


def write_smollm2_bf16(directory, out, tokens, reference):
    facts = {
        "what": "How far Hugging Face transformers in BF16 is from the FP32 reference of smollm2_fp32, over all positions",
        "environment": environment(),
        "prompts": list(prompts.PROMPTS),
    }
    for attention in ("sdpa", "eager"):
        model = load(directory, torch.bfloat16, attention)
        facts[f"bf16_{attention}"] = compare(reference, np.stack([all_logits(model, row) for row in tokens]))
    GoldenWriter(facts).write(out, "smollm2_bf16")


def make_smollm2(directory, out):
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokens = list(prompts.tokenize_prompts(tokenizer).values())
    model = load(directory, torch.float32, "eager")
    reference = np.stack([all_logits(model, row) for row in tokens])
    write_smollm2_fp32(directory, out, tokens, reference, model)
    write_smollm2_bf16(directory, out, tokens, reference)


def build_tiny(variant):
    """The model in FP32 with the checkpoint's rounded weights, and the digest of all tensors' names and bytes."""
    config = variant["config"]
    tensors = tiny_model.checkpoint(config, variant["seed"])
    digest = xxh3(b"".join(name.encode() + data for name, (data, _) in tensors.items()))
    state = {name: torch.from_numpy(values.copy()) for name, (_, values) in tensors.items() if values is not None}
    if tiny_model.is_tied(config):
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    # A copy: configurations edit rope_scaling in place. FP8 weights are multiplied out above.
    settings = copy.deepcopy(config)
    for key in ("architectures", "torch_dtype", "quantization_config"):
        settings.pop(key, None)
    made = transformers.AutoConfig.for_model(**settings)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").float().eval()
    model.load_state_dict(state, strict=True)
    return model, digest


def make_tiny(variant, out):
    config = variant["config"]
    config_json, vocab = tiny_model.compact_json(config), config["vocab_size"]
    tokenizer_json = tiny_model.compact_json(tiny_model.tokenizer(vocab))
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json.decode())
    model, digest = build_tiny(variant)
    tokens = [tiny_model.prompt_ids(variant["seed"], index, vocab) for index in range(tiny_model.PROMPTS)]
    rows = np.stack([all_logits(model, ids) for ids in tokens])
    outcome = [greedy(model, ids, tiny_model.GREEDY_TOKENS) for ids in tokens]
    facts = {
        "what": "Logits of a tiny model with weights made from a seed, computed in FP32 by Hugging Face transformers",
        "environment": environment(),
        "seed": variant["seed"],
        "config": config,
        "xxh3_64": {"config.json": xxh3(config_json), "tokenizer.json": xxh3(tokenizer_json), "tensors": digest},
        "texts": [{"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS],
        "greedy_stops_at_eos": False,
    }
    golden = GoldenWriter(facts)
    golden.add("tokens", "u32", tokens)
    golden.add("logits", "f32", rows)
    golden.add("log_sum_exp", "f32", logit_rows.log_sum_exp(rows))
    golden.add("rest_log_sum_exp", "f32", logit_rows.rest_log_sum_exp(rows, logit_rows.top_ids(rows)))
    golden.add("projections", "f32", logit_rows.project(rows, logit_rows.projection_signs(vocab)))
    # Rows that differ much: the test of the comparison itself in C++.
    golden.add("next_row_bucket_kl", "f32", logit_rows.bucket_kl(rows[:, :-1], rows[:, 1:]))
    golden.add("margins", "f32", margins_of(rows))
    golden.add("greedy_tokens", "u32", [chosen for chosen, _ in outcome])
    golden.add("greedy_margins", "f32", [margins for _, margins in outcome])
    golden.write(out, variant["name"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "build/models/smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, default=ROOT / "tests/golden/engine")
    parser.add_argument("--only", choices=["tiny", "smollm2"])
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only != "smollm2":
        for variant in tiny_model.VARIANTS:
            make_tiny(variant, options.out)
    if options.only != "tiny":
        if not (options.model / "config.json").is_file():
            sys.exit(f"{options.model} is not a model directory; scripts/get_demo_model.sh makes it")
        make_smollm2(options.model, options.out)


if __name__ == "__main__":
    main()
