# SPDX-License-Identifier: Apache-2.0
"""The eight texts of the engine's golden files: each is more than PROMPT_TOKENS tokens long and is cut there."""

PROMPT_TOKENS = 128
GREEDY_PROMPT_TOKENS = 32

PROSE = """The lighthouse keeper had counted the ships for thirty-one years, and on the first Monday of October she \
counted none. The harbour lay flat under a white sky. Nets hung from the rails like washing, and the gulls, having \
nobody to shout at, walked along the pier in pairs. She wrote a zero in the ledger, looked at it for a while, and then \
drew a small boat next to it so that the page would not feel empty. By noon the wind had turned. It brought the smell of \
rain, and from somewhere beyond the breakwater the slow beat of an engine that she knew she had heard before, on a night \
when the lamp had failed and the whole village had come out with lanterns to stand along the cliff until morning.
"""

CODE = '''#include <cstdio>
#include <vector>

// Returns the indices of the values that are larger than every value before them.
std::vector<std::size_t> record_highs(const std::vector<int>& values) {
  std::vector<std::size_t> result;
  int best = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (result.empty() || values[i] > best) {
      best = values[i];
      result.push_back(i);
    }
  }
  return result;
}

int main() {
  const std::vector<int> rain = {3, 1, 4, 1, 5, 9, 2, 6};
  for (const std::size_t day : record_highs(rain)) {
    std::printf("day %zu: %d mm\\n", day, rain[day]);
  }
}
'''

CHAT = """<|im_start|>system
You are a patient teacher who explains things with everyday examples and short sentences.<|im_end|>
<|im_start|>user
Why does ice float on water? Most things sink when they get colder and denser.<|im_end|>
<|im_start|>assistant
Good question! Water is unusual: when it freezes, its molecules line up in an open pattern, like people holding hands at \
arm's length. They take more room than in the liquid, so a piece of ice weighs less than the water that it pushes away, \
and it floats. That is also why a full bottle cracks in the freezer.<|im_end|>
<|im_start|>user
Does that matter for the fish in a lake in winter?<|im_end|>
<|im_start|>assistant
"""

NUMBERS = """Station 7, readings of 2019-03-14 (UTC)
time, pressure_hPa, temperature_C, wind_m_s
00:00, 1013.25, -4.5, 12.0
03:00, 1011.80, -5.25, 14.75
06:00, 1009.4, -6.125, 17.3
09:00, 1008.95, -3.0, 16.08
12:00, 1007.333, 0.5, 15.9
15:00, 1006.1, 1.75, 18.25
18:00, 1004.02, -0.333, 21.6
21:00, 1002.77, -2.9, 23.45
mean = 1007.953, 3.14159265358979 * 2 = 6.28318530717958, 65536 / 255 = 257.00392
"""

EUROPEAN = """Le marché ouvre à sept heures, même en hiver ; « il faut bien manger », dit la boulangère. Über die Brücke \
fährt der erste Zug, und im Café gegenüber werden schon Brötchen verkauft. ¿Quién quiere otro café? preguntó el señor \
Núñez, mañana será demasiado tarde. Łódź leży daleko stąd, ale pociąg jedzie szybko. È così che comincia la giornata, \
perché nessuno ha fretta: até amanhã, então!
"""

SCRIPTS = """Привет, мир! Сегодня хорошая погода. 今日は天気がいいですね。散歩に行きましょう。你好，世界！我们一起去公园。\
안녕하세요, 만나서 반갑습니다. नमस्ते दुनिया। مرحبا بالعالم، كيف حالك؟ Καλημέρα κόσμε. שלום עולם. 🙂🚲🌧️ 3 × 7 = 21, ½ + ¼ = ¾, x² ≠ √y
"""

JSON_LOG = """{"level": "info", "service": "billing", "attempt": 1, "latency_ms": 48.2, "tags": ["eu-west", "retry"]}
{"level": "warn", "service": "billing", "attempt": 2, "latency_ms": 913.7, "tags": ["eu-west", "retry", "slow"]}
{"level": "error", "service": "billing", "attempt": 3, "latency_ms": 5000.0, "error": {"code": 504, "text": "timeout"}}
{"level": "info", "service": "mailer", "attempt": 1, "latency_ms": 12.9, "tags": []}
"""

REPEAT = """Monday we walk, Tuesday we run, Wednesday we swim. Monday we walk, Tuesday we run, Wednesday we swim. \
Monday we walk, Tuesday we run, Wednesday we swim.\n\n\n\tshopping list:\n\t- apples\n\t- bread\n\t- apples\n\t- bread\n\t- \
apples\n\n    THE END.   the end.   The   End   ...   aaaaaaaaaaaaaaaa bbbbbbbb ccccc ddd e\n\nMonday we walk, Tuesday we \
run, Wednesday we swim. Monday we walk, Tuesday we run, Wednesday we swim. Monday we walk, Tuesday we run.
"""

PROMPTS = {
    "prose": PROSE,
    "code": CODE,
    "chat": CHAT,
    "numbers": NUMBERS,
    "european": EUROPEAN,
    "scripts": SCRIPTS,
    "json": JSON_LOG,
    "repeat": REPEAT,
}


def tokenize_prompts(tokenizer):
    """name -> exactly PROMPT_TOKENS ids."""
    result = {}
    for name, text in PROMPTS.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) < PROMPT_TOKENS:
            raise ValueError(f"prompt '{name}' has {len(ids)} tokens, fewer than {PROMPT_TOKENS}")
        result[name] = ids[:PROMPT_TOKENS]
    return result
