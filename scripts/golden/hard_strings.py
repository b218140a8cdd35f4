# SPDX-License-Identifier: Apache-2.0
"""The 300 strings that tokenizers are held to: str, bytes that are not UTF-8, or [(part, count), ...] for long runs."""

import random

SEED = 20240611

CODE = [
    "def f(x):\n    return x + 1\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n",
    "if (x != nullptr && y >= 0) return foo->bar();\n",
    '{"key": [1, 2, 3], "other": null}\n',
    "SELECT * FROM t WHERE id = 42;\n",
    "#include <vector>\nstd::vector<int> v{1, 2, 3};\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n    println!(\"{x:>8.3}\");\n}\n",
    "const f = async (a, ...b) => await g`t${a}` ?? b?.[0];\r\n",
    "<a href=\"x?y=1&amp;z=2#q\">&lt;b&gt;</a>\n",
    "awk '{ s += $1 } END { print s/NR }' f.txt | sort -n > \"$OUT\" 2>&1\n",
    "\\begin{equation}\n  \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}\n\\end{equation}\n",
    "if a:\n\tif b:\n\t\tpass\n\telse:\n\t    x = 'it''s'\n",
    "0x1F 0b101 1_000_000 3.14e-10f 0777 1e9 .5 5.",
    "a ? b : c ? d : e; x ^= y << 3 >> 1; !!z; i++ + ++i;",
    "@@ -1,3 +1,4 @@\n-old\n+new\n \n",
    "| a | b |\n|---|:-:|\n| 1 | 2 |\n",
    "key: value\nlist:\n  - 'a'\n  - \"b\"\n...\n---\n",
    "\x1b[1;31mred\x1b[0m\r\x08\x08",
]
WHITE_SPACE = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", " a", "a ", "  a  b   c  ", "a\n", "a\n\nb", "tabs\tand\t\ttabs",
    "trailing spaces   ", "   leading spaces", "line one\nline two\r\nline three\rline four", "\n\n\n\n", " \n \n \n ", "\t\n\t",
    "  \n\n  text", "text\n    indented\n        more", "a    b", "        ", "         x", "\r\r\n\n\r", "\x0b\x0c\x1c\x1d\x1e\x1f x",
    "nbsp\u00a0here\u202fand\u2003there\u3000end", "nel\u0085line\u2028sep\u2029para", "\u180e mongolian \u180e", "\u2000\u200a\u200b\u2060",
    "\u00a0\u00a0 \u00a0", "\u3000全角\u3000", "a \u3000b", "x\u0085\u0085 y", " \u2028 ", "\ufeffbom", "a\u200b b\u200c c\u200d d",
]
WORDS = [
    "Hello, world!", "Hello world", "HELLO WORLD", "The water is 3.14159 miles long.", "it's we're they'll I'd he'S IT'S",
    "don't can't won't 'tis ''quoted''", "'s", "a's 's b'S", "x'll'll", "ſ 'ſ K", "she'll'd've", "O’Neil’s", "naïve café façade", "I'M YOU'RE",
    "snake_case camelCase PascalCase kebab-case", "http://example.com/a?b=c&d=e#f", "foo@bar.org", "C:\\path\\file.txt", "a--b--c", "--",
    "a - b -- c --- d", "...", "…", "!?!?!?", "((([[[{{{}}}]]])))", "$100 €20 £5 ¥1000", "100% + 5% = 105%", "\"quotes\" 'single' `tick`",
    "v1.2.3-rc4", "x²+y³", "½¾", "1", "12", "123", "1234567890", "1,000,000.00", "3.14e-10", "a1b2c3", "٣٤٥", "५६", "Ⅷ ⅷ ①②③ ⁴", "12 345 6789",
    "".join(chr(c) for c in range(32, 127)), "".join(chr(c) for c in range(0xA0, 0x180)), "Ġhello Ċ ĉ", "Ġ", "▁", "▁▁a ▁ b▁", "<0x0A><0xE4>", "<0x41>",
]
SCRIPTS = [
    "日本語のテキスト。漢字とかな", "東京特許許可局局長、今日。", "中文字符,没有空格", "繁體中文「引號」與《書名》", "你好,世界!123", "𠮷野家 𩸽 𪚥", "안녕하세요 세계",
    "가각 \u1100\u1161\u11a8", "한국어 띄어쓰기 테스트입니다.", "שלום עולם", "שָׁלוֹם", "مرحبا بالعالم ١٢٣", "العَرَبِيَّة ـــ", "नमस्ते दुनिया १२३", "क्षत्रिय ज़",
    "ภาษาไทยไม่มีช่องว่าง", "ລາວ ខ្មែរ မြန်မာ", "ελληνικά ΑΒΓ", "привет, мир!", "Ђорђе ѣ Ѳ", "Հայերեն ქართული", "தமிழ் తెలుగు ಕನ್ನಡ", "ᚠᚢᚦ ᎣᏏᏲ ⠓⠊",
    "ﬁ ligature ﬃ ﬆ", "ﺍﻟﻌ ﷺ", "ｆｕｌｌ ｗｉｄｔｈ １２３ ﾊﾝｶｸ", "𝔘𝔫𝔦 𝟘𝟙 𝕏", "İstanbul ıI iİ", "Straße ẞ", "Ǆ ǅ ǆ", "Å Å A\u030a", "µ μ Ω Ω K", "㍿ ㎏ ㏂ ℡",
    "mixed 中文 and English と日本語 한글", "「」『』【】〈〉", "々〆ヶ ー〜", "ㄱㄴㄷ ㅏㅑ", "ไทย ๑๒๓",
]
EMOJI = [
    "👍", "👨‍👩‍👧‍👦 family", "👩🏽‍🚀 🏳️‍🌈 🇩🇪🇯🇵", "😀😀😀😀", "❤️ ❤ ☺︎", "👨🏿‍❤️‍💋‍👨🏻", "🧑‍🤝‍🧑🏾", "1️⃣2️⃣#️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🤷🏻‍♀️ shrug", "a👍b👍🏿c",
    "😀\u200d", "\u200d👩", "👩\u200d\u200d👩", "🇩 🇪🇯", "☕️☕", "✈\ufe0f\ufe0e", "🫠🪿", "©️®️™️", ":-) ;-) ¯\\_(ツ)_/¯",
]
MARKS = [
    "cafe\u0301", "a\u0300\u0316\u0301b", "\u1e9b\u0323", "e\u20dd", "\u0301 leading mark", "q\u0307\u0323", "q\u0323\u0307", "\u0344\u0343",
    "Z\u0351\u036b\u0343a\u0334\u0321\u031bl\u0360\u0488", "\u0958\u0915\u093c", "\u0f73\u0f71\u0f72", "o\u0302\u0323 ộ", "\u1100\u1161\u11a8\u11a8", "\uac00\u11a8",
    "x\u0338= \u2260", "\u0041\u030a\u0301", "\u0e40\u0e01\u0e33", "\u05d1\u05bc\u05b0", "\u064a\u0654", "\u3046\u3099 ゔ", "i\u0307\u0300", "\u09c7\u09be", "\u0653\u0627",
]
CONTROLS = [
    "\u0000", "a\u0000b", "\u0000\u0000\u0000", "".join(map(chr, range(1, 32))), "\u007f\u0080\u009f", "\u00ad soft", "zero\u200bwidth\u200cjoin\u200der\ufeff",
    "\ud7ff\ue000\uffff", "\U0001f600\U0010ffff", "\u202eright\u202c \u2066x\u2069", "\ufffd\ufffe", "\U000e0001\U000e007f", "\u0600\u06dd", "\x85\x85\x85", "a\rb",
    "\x07\x1a\x1b", "\u061c\u200e\u200f", "\U0001d173\U0001d17a", "\u0378\u0379", "\U000f0000\U00100000",
]
SPECIAL = [
    "    four", "two words", "two  words", "twowords", "It took two words to say", "cat", "cat cats concat cat, (cat) cat_ cat1 écat", "the cat sat",
    "cat\u200d", "é", "été", "e\u0301", "<left>", "a <left> b", "a  \n <left>  b", "<right>  b", "a <right> \n b", "x <both> y", "  <both>  ", "<both><both>",
    "<both> <left> <right> <both>", "\n\n\n\n\n\nx", "\n\n  \n\n  y", "\n\n<left>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>|",
    "<|im_start|", "<|im_start|><|im_start|>", "text<|im_end|>text", " <|im_end|> ", "<s>text</s>", "<unk>", "<s> <s>", " <s>", "a<s>", "<|eot|>", "a<|eot|>b",
    "<|endoftext|>x", "a  [é] [e\u0301]", "[é]", "the<|eot|> the", "</s> a </s>", "[INST] Hi [/INST]", "<|begin_of_text|>x", "café cafe\u0301 CAFÉ",
]
INVALID = [
    b"\xff", b"\x80", b"a\xffb", b"\xc3", b"\xe4\xbd", b"\xe4\xbd\xa0\xe5\xa5", b"\xf0\x9f\x98", b"caf\xe9 latin", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80\xed\xb0\x80",
    b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe\xff\x00h\x00i", b"ok \xe2\x82 ok", b"\xe2\x82\xac\xe2\x82", b" \xff ", b"\xff\xff\xff\xff", b"the \xc3\x28 of", b"\x80\xbf",
    b"e\xcc\x81\xff\xcc\x81", b"<s>\xff</s>", b"\xffcat", b"\xe4\xbd\xa0\xff\xe5\xa5\xbd", b"1\x002\xfe3",
]
LONG = [
    [("a", 200)], [("ab", 150)], [(" ", 130)], [("\n", 40)], [("1", 50)], [("-", 90)], [("é", 60)], [("😀", 20)], [("the ", 60)], [("aaaa bbbb ", 12)],
    [("x", 1), (" ", 60), ("y", 1)], [("\u0301", 40)], [("a\u0316\u0301", 20)], [("ÀÁÂ", 15)], [("the of and to ", 200)], [("a", 20000)], [(" ", 20000)], [("\n", 9000), ("x", 1)],
    [("你好", 4000)], [("\u200d", 3000)], [("=", 7777)], [("👨‍👩‍👧‍👦", 800)], [("x", 1), ("\u0301\u0316", 3000)], [("0123456789", 1500)], [("\t ", 5000)], [("<s>", 700)],
]


def generated(count):
    rng = random.Random(SEED)
    pools = [
        " \n\t\r", "abcdefghij the of and", "0123456789", ".,!?'\"-_()", "äöüßéèñ", "漢字仮名中文", "😀👍🏽\u200d\ufe0f", "\u0300\u0301\u0316\u0323",
        "\u00a0\u2003\u3000\u0085\u180e", "\u0000\u001b\u007f",
    ]
    extra = ["<|im_end|>", "<left>", "<right>", "<both>", "cat", "two words", "<|eot|>", "café", "'s", "'ll", "<s>"]
    for _ in range(count):
        parts = [rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 40))]
        parts += [rng.choice(extra) for _ in range(rng.randint(0, 3))]
        rng.shuffle(parts)
        yield "".join(parts)


def strings():
    fixed = CODE + WHITE_SPACE + WORDS + SCRIPTS + EMOJI + MARKS + CONTROLS + SPECIAL + INVALID + LONG
    return fixed + list(generated(max(10, 330 - len(fixed))))


def whole(string):
    """The str or bytes that an entry describes."""
    return "".join(part * count for part, count in string) if isinstance(string, list) else string


def to_json(string):
    if isinstance(string, bytes):
        return {"hex": string.hex()}
    return {"parts": [list(part) for part in string]} if isinstance(string, list) else string
