# SPDX-License-Identifier: Apache-2.0
"""What the small vocabularies of the tokenizer tests are trained on, and the byte alphabet of GPT-2."""

import random

from hard_strings import CODE

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


def sentences(seed):
    """Sentences, numbers and code."""
    rng = random.Random(seed)
    for _ in range(1500):
        words = [rng.choice(WORDS) for _ in range(rng.randint(3, 14))]
        if rng.random() < 0.3:
            words.append(rng.choice(OTHER))
        if rng.random() < 0.2:
            words.append(str(rng.randint(0, 99999)))
        yield words[0].capitalize() + " " + " ".join(words[1:]) + rng.choice([".", "!", "?", ", etc.", "\n", "...\n\n"])
        if rng.random() < 0.2:
            yield rng.choice(CODE[:6])


def byte_character(byte):
    """The character that spells a byte: itself where it prints, else U+0100 and up in the order of the bytes."""
    prints = lambda b: 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE
    return chr(byte) if prints(byte) else chr(0x100 + sum(not prints(b) for b in range(byte)))
