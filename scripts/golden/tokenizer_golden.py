#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of the tokenizer tests with the Python package `tokenizers` (0.22).

  tokenizer_golden.py                     tests/golden/tokenizer/{digits,template,prefixed}.json, their *.golden.json
  tokenizer_golden.py --smollm2-gguf F    also smollm2.golden.json, from the vocabulary in a GGUF file (package `gguf`)

Everything is a function of the seed: a second run writes the same bytes.
"""

import argparse
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SEED = 20240611
OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tokenizer"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

WORDS = """the of and to in is that it for was on are as with his they at be this from have or by one had not but what all
were when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down only
way find use may water long little very after words called just where most know get through back much before also around
another came come work three word must because does part even place well such here take why things help put years
different away again off went old number great tell men say small every found still between name should home big give air
line set own under read last never us left end along while might next sound below saw something thought both few those
always looked show large often together asked house world going want school important until form food keep children feet
land side without boy once animals life enough took sometimes four head above kind began almost live page got earth need
far hand high year mother light parts country father let night following picture being study second eyes soon times story
boys since white days ever paper hard near sentence better best across during today others however sure means knew it's
try told young miles sun ways thing whole hear example heard several change answer room sea against top turned learn point
city play toward five using himself usually""".split()
OTHER = """über größe straße naïve café façade résumé señor año привет мир данные слово 東京 日本語 漢字 中文 字符 가나다 안녕 שלום
مرحبا नमस्ते ελληνικά""".split()
CODE = [
    "def f(x):\n    return x + 1\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n",
    "if (x != nullptr && y >= 0) return foo->bar();\n",
    '{"key": [1, 2, 3], "other": null}\n',
    "SELECT * FROM t WHERE id = 42;\n",
    "#include <vector>\nstd::vector<int> v{1, 2, 3};\n",
]


def corpus(seed):
    rng = random.Random(seed)
    for _ in range(1500):
        words = [rng.choice(WORDS) for _ in range(rng.randint(3, 14))]
        if rng.random() < 0.3:
            words.append(rng.choice(OTHER))
        if rng.random() < 0.2:
            words.append(str(rng.randint(0, 99999)))
        yield words[0].capitalize() + " " + " ".join(words[1:]) + rng.choice([".", "!", "?", ", etc.", "\n", "...\n\n"])
        if rng.random() < 0.2:
            yield rng.choice(CODE)


def train(tokenizer, vocab_size, alphabet, seed):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(list(corpus(seed)), trainer)


def digits_tokenizer():
    """SmolLM2's steps; added tokens with every flag."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.decoder = decoders.ByteLevel()
    train(t, 600, sorted(pre_tokenizers.ByteLevel.alphabet()), SEED)
    t.add_special_tokens(
        [
            "<|im_start|>",
            "<|im_end|>",
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<|im_start|>|", normalized=False),
        ]
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


def template_tokenizer():
    """Llama 3's steps, over a vocabulary that lacks bytes, with NFC, unk and ignore_merges."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False, ignore_merges=True))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    train(t, 360, [], SEED + 1)
    bos, eos = t.token_to_id("<s>"), t.token_to_id("</s>")
    t.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<s> $A </s>", pair="<s> $A <s> $B", special_tokens=[("<s>", bos), ("</s>", eos)]
            ),
        ]
    )
    t.add_special_tokens([AddedToken("<|eot|>", normalized=False)])
    t.add_tokens([AddedToken("café", normalized=True), AddedToken("[é]", normalized=True, lstrip=True)])
    return t


def prefixed_tokenizer():
    """add_prefix_space, Removed with invert, NFKC, fused unk."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.NFKC()])
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K_PATTERN), "removed", invert=True),
            pre_tokenizers.Split("--", "merged_with_previous"),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
        ]
    )
    t.decoder = decoders.ByteLevel()
    train(t, 330, [], SEED + 2)
    t.add_special_tokens(["<|endoftext|>"])
    return t


def texts():
    rng = random.Random(SEED)
    fixed = ["", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "a", " a", "a ", "  a  b   c  ", "a\n", "a\n\nb"]
    fixed += CODE
    fixed += [
        "Hello, world!", "Hello world", "HELLO WORLD", "The water is 3.14159 miles long.", "it's we're they'll I'd he'S IT'S",
        "don't can't won't 'tis ''quoted''", "'s", "a's 's b'S", "x'll'll", "naïve café façade", "cafe\u0301", "a\u0300\u0316\u0301b",
        "\u1e9b\u0323", "ﬁ ligature ① Ⅷ ½ ²³ ﷺ", "Å Å A\u030a", "가각 \u1100\u1161\u11a8", "日本語のテキスト。漢字とかな",
        "中文字符,没有空格", "안녕하세요 세계", "שלום עולם", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया १२३", "ελληνικά ΑΒΓ",
        "привет, мир!", "👍", "👨‍👩‍👧‍👦 family", "👩🏽‍🚀 🏳️‍🌈 🇩🇪🇯🇵", "😀😀😀😀", "e\u20dd", "\u0301 leading mark",
        "zero\u200bwidth\u200cjoin\u200der\ufeff", "\u180e mongolian \u180e", "nbsp\u00a0here\u202fand\u2003there\u3000end",
        "nel\u0085line\u2028sep\u2029para", "\u0000", "a\u0000b", "".join(map(chr, range(1, 32))), "\u007f\u0080\u009f", "\u00ad soft",
        "\ud7ff\ue000\uffff", "\U0001f600\U0010ffff", "1", "12", "123", "1234567890", "3.14e-10", "1,000,000.00", "0x1F 0b101",
        "a1b2c3", "٣٤٥", "५६", "½¾", "x²+y³", "v1.2.3-rc4", "http://example.com/a?b=c&d=e#f", "foo@bar.org", "C:\\path\\file.txt",
        "snake_case camelCase PascalCase kebab-case", "a--b--c", "--", "a - b -- c --- d", "...", "…", "!?!?!?", "((([[[{{{}}}]]])))",
        "<html><body>&nbsp;</body></html>", "$100 €20 £5 ¥1000", "100% + 5% = 105%", "\"quotes\" 'single' `tick`",
        "tabs\tand\t\ttabs", "trailing spaces   ", "   leading spaces", "line one\nline two\r\nline three\rline four",
        "\n\n\n\n", " \n \n \n ", "\t\n\t", "  \n\n  text", "text\n    indented\n        more", "a    b", "        ", "         x",
        "    four", "two words", "two  words", "twowords", "It took two words to say", "cat", "cat cats concat cat, (cat) cat_ cat1 écat",
        "the cat sat", "cat\u200d", "é", "été", "e\u0301", "<left>", "a <left> b", "a  \n <left>  b", "<right>  b", "a <right> \n b",
        "x <both> y", "  <both>  ", "<both><both>", "<both> <left> <right> <both>", "\n\n\n\n\n\nx", "\n\n  \n\n  y", "\n\n<left>",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>|", "<|im_start|", "<|im_start|><|im_start|>",
        "text<|im_end|>text", " <|im_end|> ", "<s>text</s>", "<unk>", "<s> <s>", "<|eot|>", "a<|eot|>b", "<|endoftext|>x",
        "café cafe\u0301 CAFÉ", "a  [é] [e\u0301]", "[é]", "the<|eot|> the",
        "".join(chr(c) for c in range(32, 127)), "".join(chr(c) for c in range(0xA0, 0x180)), "Ġhello Ċ ĉ", "Ġ", "ſ 'ſ K",
        "a" * 200, "ab" * 150, " " * 130, "\n" * 40, "1" * 50, "-" * 90, "é" * 60, "😀" * 20, "the " * 60, "aaaa bbbb " * 12,
        "x" + " " * 60 + "y", "\u0301" * 40, "a\u0316\u0301" * 20, "ÀÁÂ" * 15, "the of and to " * 8,
    ]
    pools = [
        " \n\t\r", "abcdefghij the of and", "0123456789", ".,!?'\"-_()", "äöüßéèñ", "漢字仮名中文", "😀👍🏽\u200d\ufe0f", "\u0300\u0301\u0316\u0323",
        "\u00a0\u2003\u3000\u0085\u180e", "\u0000\u001b\u007f",
    ]
    extra = ["<|im_end|>", "<left>", "<right>", "<both>", "cat", "two words", "<|eot|>", "café", "'s", "'ll"]
    for _ in range(40):
        parts = [rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 40))]
        parts += [rng.choice(extra) for _ in range(rng.randint(0, 3))]
        rng.shuffle(parts)
        fixed.append("".join(parts))
    return [t for t in fixed if not any(0xD800 <= ord(c) < 0xE000 for c in t)]


def encode(tokenizer, text, special, parse):
    tokenizer.encode_special_tokens = not parse
    return tokenizer.encode(text, add_special_tokens=special).ids


def text_cases(tokenizer, strings):
    """Per text: ids with special tokens parsed and the frame added; the other two only where they differ."""
    cases = []
    for text in strings:
        case = {"text": text, "ids": encode(tokenizer, text, False, True)}
        framed = encode(tokenizer, text, True, True)
        plain = encode(tokenizer, text, False, False)
        if framed != case["ids"]:
            case["framed"] = framed
        if plain != case["ids"]:
            case["plain"] = plain
        decoded = tokenizer.decode(case["ids"], skip_special_tokens=False)
        if decoded != text:
            case["decoded"] = decoded
        cases.append(case)
    return cases


def decode_cases(tokenizer, count, seed):
    rng = random.Random(seed)
    byte_ids = [i for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if (i := tokenizer.token_to_id(c)) is not None]
    size = tokenizer.get_vocab_size()
    cases = []
    for _ in range(count):
        share = rng.random()
        ids = [rng.choice(byte_ids) if rng.random() < share else rng.randrange(size) for _ in range(rng.randint(1, 24))]
        case = {"ids": ids, "all": tokenizer.decode(ids, skip_special_tokens=False)}
        shown = tokenizer.decode(ids, skip_special_tokens=True)
        if shown != case["all"]:
            case["shown"] = shown
        cases.append(case)
    return cases


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n", encoding="ascii")
    print(f"{path.name}: {path.stat().st_size} bytes")


def write_tokenizer(name, tokenizer, old_merges):
    tokenizer.encode_special_tokens = False
    document = json.loads(tokenizer.to_str())
    if old_merges:
        document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    write(OUT / f"{name}.json", document)
    tokenizer = Tokenizer.from_file(str(OUT / f"{name}.json"))
    write(
        OUT / f"{name}.golden.json",
        {"texts": text_cases(tokenizer, texts()), "decodes": decode_cases(tokenizer, 60, SEED)},
    )


def smollm2_tokenizer(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    control = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"].contents()) if kind == 3]
    t = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(control)
    return t


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2-gguf")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    write_tokenizer("digits", digits_tokenizer(), old_merges=False)
    write_tokenizer("template", template_tokenizer(), old_merges=True)
    write_tokenizer("prefixed", prefixed_tokenizer(), old_merges=False)
    if arguments.smollm2_gguf:
        tokenizer = smollm2_tokenizer(arguments.smollm2_gguf)
        # Its vocabulary lacks some bytes; texts that lose one are left out.
        whole = [t for t in texts() if tokenizer.decode(tokenizer.encode(t).ids, skip_special_tokens=False) == t]
        chosen = [t for t in whole if 20 <= len(t) <= 120][:60]
        write(OUT / "smollm2.golden.json", {"texts": text_cases(tokenizer, chosen), "decodes": []})


if __name__ == "__main__":
    main()
