#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of the tokenizer tests with the Python package `tokenizers` (0.22).

  tokenizer_golden.py                   tests/golden/tokenizer/: strings.json, four trained vocabularies (gpt2, llama3, qwen2,
                                        sentencepiece) and NAME.golden.json for each of them and for each variant
  tokenizer_golden.py --smollm2 DIR     also smollm2.golden.json, from the tokenizer.json of that model directory

A variant is a vocabulary with a JSON merge patch (RFC 7386) on its file, so that one vocabulary serves many settings.
tests/golden/tokenizer/README.md describes the files. Everything is a function of the seed: a second run writes the same bytes.
"""

import argparse
import base64
import copy
import json
import pathlib
import random
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import hard_strings
import tokenizer_corpus
from hard_strings import SEED

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tokenizer"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN2_PATTERN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MAX_LISTED_IDS = 96
MAX_LISTED_BYTES = 200


def train(tokenizer, vocab_size, alphabet, seed):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(list(tokenizer_corpus.sentences(seed)), trainer)


def byte_level(pre_tokenizer, seed, **model):
    """A trained vocabulary over all bytes."""
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.ByteLevel()
    train(t, 560, sorted(pre_tokenizers.ByteLevel.alphabet()), seed)
    return t


def split_by(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def gpt2_tokenizer():
    """GPT-2's pattern; added tokens with every flag."""
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), SEED)
    t.add_special_tokens(
        ["<|im_start|>", "<|im_end|>", AddedToken("<both>", lstrip=True, rstrip=True, normalized=False), AddedToken("<|im_start|>|", normalized=False)]
    )
    t.add_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("cat", single_word=True, normalized=False),
            AddedToken("\n\n", rstrip=True, normalized=False),
            AddedToken("    ", normalized=True),
            AddedToken("two words", normalized=True),
            AddedToken("é", normalized=False),
        ]
    )
    return t


def llama3_tokenizer():
    """Llama 3's pattern, ignore_merges, and the text framed by a template."""
    t = byte_level(split_by(LLAMA3_PATTERN), SEED + 1, ignore_merges=True)
    bos, eos = t.token_to_id("<s>"), t.token_to_id("</s>")
    frame = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A <s> $B", special_tokens=[("<s>", bos), ("</s>", eos)])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), frame])
    t.add_special_tokens([AddedToken("<|eot|>", normalized=False)])
    return t


def qwen2_tokenizer():
    """Qwen2's pattern behind NFC; added tokens that are looked for in the normalised text."""
    t = byte_level(split_by(QWEN2_PATTERN), SEED + 2)
    t.normalizer = normalizers.NFC()
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken("café", normalized=True), AddedToken("[é]", normalized=True, lstrip=True)])
    return t


def sentencepiece_tokenizer():
    """Llama 2's form: characters, tokens for single bytes, a prefix on every text."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    train(t, 420, [], SEED + 3)
    trained = json.loads(t.to_str())["model"]
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    learned = [token for token in sorted(trained["vocab"], key=trained["vocab"].get) if token not in first]
    vocab = {token: i for i, token in enumerate(first + learned)}
    merges = [tuple(pair) for pair in trained["merges"]]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    t.add_special_tokens([AddedToken(token, normalized=False) for token in first[:3]] + [AddedToken("[INST]"), AddedToken("[/INST]", rstrip=True)])
    t.add_tokens([AddedToken("two words", normalized=True), AddedToken("<left>", lstrip=True)])
    return t


VOCABULARIES = {"gpt2": gpt2_tokenizer, "llama3": llama3_tokenizer, "qwen2": qwen2_tokenizer, "sentencepiece": sentencepiece_tokenizer}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
UNREPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def steps(kind, plural, *parts):
    return {"type": kind, plural: list(parts)}


def pattern_split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


# name: (vocabulary, merge patch)
VARIANTS = {
    "digits": ("gpt2", {"pre_tokenizer": steps("Sequence", "pretokenizers", {"type": "Digits", "individual_digits": True}, BYTE_LEVEL)}),
    "o200k": (
        "gpt2",
        {
            "normalizer": steps("Sequence", "normalizers", {"type": "NFC"}, {"type": "NFKC"}),
            "pre_tokenizer": steps(
                "Sequence",
                "pretokenizers",
                pattern_split({"Regex": O200K_PATTERN}, "Removed", True),
                pattern_split({"String": "--"}, "MergedWithPrevious"),
                {"type": "Digits", "individual_digits": False},
                {**BYTE_LEVEL, "add_prefix_space": True},
            ),
        },
    ),
    "metaspace_first": ("sentencepiece", {"normalizer": None, "pre_tokenizer": metaspace("first", False)}),
    "metaspace_always": ("sentencepiece", {"normalizer": None, "pre_tokenizer": metaspace("always", True), "decoder": {**metaspace("always", True), "decoders": None}}),
    "metaspace_never": ("sentencepiece", {"normalizer": None, "pre_tokenizer": metaspace("never", True), "decoder": {**metaspace("never", True), "decoders": None}}),
    "gemma": (
        "sentencepiece",
        {
            "normalizer": {**REPLACE, "normalizers": None},
            "pre_tokenizer": pattern_split({"String": " "}, "MergedWithPrevious"),
            "decoder": steps("Sequence", "decoders", UNREPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}),
        },
    ),
    "unknown_fused": ("sentencepiece", {"model": {"byte_fallback": False}}),
    "unknown_each": ("sentencepiece", {"model": {"byte_fallback": False, "fuse_unk": False, "ignore_merges": True}}),
    "lowercase": (
        "sentencepiece",
        {
            "normalizer": steps(
                "Sequence",
                "normalizers",
                {"type": "NFKD"},
                {"type": "StripAccents"},
                {"type": "Lowercase"},
                {"type": "Strip", "strip_left": True, "strip_right": True},
                {"type": "Prepend", "prepend": "▁"},
                {**REPLACE, "pattern": {"Regex": " +"}},
            )
        },
    ),
    "nfd": ("qwen2", {"normalizer": {"type": "NFD"}}),
}


def merge_patch(target, patch):
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def without_prefixes(node):
    """A tokenizer document whose steps put nothing before a text."""
    if isinstance(node, list):
        return [without_prefixes(part) for part in node if not (isinstance(part, dict) and part.get("type") == "Prepend")]
    if not isinstance(node, dict):
        return node
    changed = {key: without_prefixes(value) for key, value in node.items()}
    if changed.get("type") == "Metaspace":
        changed["prepend_scheme"] = "never"
    if changed.get("type") == "ByteLevel":
        changed["add_prefix_space"] = False
    return changed


class Reference:
    """The package's tokenizer, and our rules where the package has none: bytes that are not UTF-8."""

    def __init__(self, document):
        document = {"normalizer": None, "pre_tokenizer": None, **document}
        self.whole = Tokenizer.from_str(json.dumps(document))
        text_steps = {key: without_prefixes(document[key]) for key in ("normalizer", "pre_tokenizer")}
        self.continuing = Tokenizer.from_str(json.dumps({**document, **text_steps}))
        decoder = document["decoder"]
        self.decoders = {part["type"]: part for part in decoder.get("decoders", [decoder])}
        self.is_byte_level = "ByteLevel" in self.decoders
        self.prefixes_pieces = '"add_prefix_space": true' in json.dumps(document["pre_tokenizer"])
        self.falls_back = document["model"].get("byte_fallback", False)
        self.unknown = document["model"].get("unk_token")

    def encode(self, text, special, parse, tokenizer=None):
        if isinstance(text, bytes):
            return self.encode_bytes(text, special, parse)
        tokenizer = tokenizer or self.whole
        tokenizer.encode_special_tokens = not parse
        return tokenizer.encode(text, add_special_tokens=special).ids

    def byte_id(self, byte):
        if self.is_byte_level:
            return self.whole.token_to_id(tokenizer_corpus.byte_character(byte))
        if self.falls_back:
            return self.whole.token_to_id(f"<0x{byte:02X}>")
        return self.whole.token_to_id(self.unknown)

    def encode_bytes(self, data, special, parse):
        ids = []
        first = True
        while data:
            try:
                valid = len(data.decode() and data)
            except UnicodeDecodeError as error:
                valid = error.start
            if valid:
                ids += self.encode(data[:valid].decode(), False, parse, self.whole if first else self.continuing)
            elif (byte_id := self.byte_id(data[0])) is not None:
                ids.append(byte_id)
            data = data[max(valid, 1):]
            first = False
        frame = self.encode("", True, parse) if special else []
        return frame[:1] + ids + frame[1:]

    def decode(self, ids, skip=False):
        if "ByteFallback" not in self.decoders:
            return self.whole.decode(ids, skip_special_tokens=skip)
        specials = {token.content for token in self.whole.get_added_tokens_decoder().values() if token.special}
        data, runs = b"", [b""]
        for token in map(self.whole.id_to_token, ids):
            if skip and token in specials:
                continue
            is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
            part = bytes([int(token[3:5], 16)]) if is_byte else token.replace("▁", " ").encode()
            data += part
            runs = runs[:-1] + [runs[-1] + part] if is_byte else runs + [b""]
        text = data.decode("utf-8", "replace")
        if "Strip" in self.decoders and text.startswith(" "):
            text = text[1:]
        if all("\ufffd" not in run.decode("utf-8", "replace") for run in runs):
            assert text == self.whole.decode(ids, skip_special_tokens=skip)
        return text


def fnv(data, state=0xCBF29CE484222325):
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def packed_ids(ids):
    """Base64 of 16-bit ids; of a long list the length and the hash of that."""
    data = struct.pack(f"<{len(ids)}H", *ids)
    return base64.b64encode(data).decode() if len(ids) <= MAX_LISTED_IDS else [len(ids), f"{fnv(data):016x}"]


def packed_text(text):
    data = text.encode()
    return text if len(data) <= MAX_LISTED_BYTES else [len(data), f"{fnv(data):016x}"]


def answers(reference, text):
    ids = reference.encode(text, False, True)
    return ids, reference.encode(text, True, True), reference.encode(text, False, False), reference.decode(ids)


def case(reference, text):
    """[ids] or [ids, what differs]: ids with special tokens parsed; framed and plain where they are others."""
    ids, framed, plain, decoded = answers(reference, text)
    odd = {}
    if framed != ids:
        odd["framed"] = packed_ids(framed)
    if plain != ids:
        odd["plain"] = packed_ids(plain)
    if decoded != (text.decode("utf-8", "replace") if isinstance(text, bytes) else text):
        odd["decoded"] = packed_text(decoded)
    return [packed_ids(ids), odd] if odd else [packed_ids(ids)]


def digest(reference, text):
    """One hash over everything that case() tells; zeros where this script has no rule (bytes that are not UTF-8, cut into
    pieces that get a space each)."""
    if isinstance(text, bytes) and reference.prefixes_pieces:
        return "0" * 16
    ids, framed, plain, decoded = answers(reference, text)
    data = b"".join(struct.pack(f"<I{len(each)}H", len(each), *each) for each in (ids, framed, plain))
    return f"{fnv(data + decoded.encode()):016x}"


def decode_cases(reference, count, seed):
    rng = random.Random(seed)
    size = reference.whole.get_vocab_size()
    byte_ids = [i for byte in range(256) if (i := reference.byte_id(byte)) is not None]
    for _ in range(count):
        share = rng.random()
        ids = [rng.choice(byte_ids) if rng.random() < share else rng.randrange(size) for _ in range(rng.randint(1, 24))]
        yield [packed_ids(ids), reference.decode(ids), reference.decode(ids, skip=True)]


def write(name, value):
    path = OUT / f"{name}.json"
    lines = isinstance(value, dict) and "cases" in value
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    path.write_text((text.replace('],["', '],\n["') if lines else text) + "\n", encoding="ascii")
    print(f"{path.name}: {path.stat().st_size} bytes")


def write_golden(name, document, base=None, patch=None):
    reference = Reference(document)
    texts = [hard_strings.whole(string) for string in hard_strings.strings()]
    if patch is None:
        cases = [case(reference, text) for text in texts]
        write(f"{name}.golden", {"cases": cases, "decodes": list(decode_cases(reference, 60, SEED))})
    else:
        write(f"{name}.golden", {"base": base, "patch": patch, "digests": "".join(digest(reference, text) for text in texts)})


def trained_document(name):
    tokenizer = VOCABULARIES[name]()
    tokenizer.encode_special_tokens = False
    document = json.loads(tokenizer.to_str())
    if name == "llama3":  # the older spelling of merges
        document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    return document


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=pathlib.Path, help="model directory")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    write("strings", [hard_strings.to_json(string) for string in hard_strings.strings()])
    documents = {}
    for name in VOCABULARIES:
        documents[name] = trained_document(name)
        write(name, documents[name])
        write_golden(name, documents[name])
    for name, (base, patch) in VARIANTS.items():
        write_golden(name, merge_patch(copy.deepcopy(documents[base]), patch), base, patch)
    if arguments.smollm2:
        write_golden("smollm2", json.loads((arguments.smollm2 / "tokenizer.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
