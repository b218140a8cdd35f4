// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_load_scales.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include <metrale/base/error.h>

namespace metrale::engine {
namespace {

constexpr std::size_t kTokens = 512;

// Prose, dialogue, figures, code and other scripts, since each wakes other channels. A change of it changes
// the scales, and so what stored blocks mean.
constexpr std::string_view kText =
    R"(The harbour master kept two books. In the first he wrote what came in: forty crates of lemons, a piano wrapped in
sailcloth, three letters for the widow Harrow, and once, in the winter of 1893, a bear. In the second book he wrote what the
sea had kept. That one was longer, and he never let anyone read it.

"You count the wrong things," his daughter told him. "Count the ones who waited."
"And how would I know when they had stopped?" he asked. She had no answer, so she went down to the quay and began to count.

1. Preheat the oven to 220 degrees. 2. Whisk 3 eggs with 150 g of sugar until pale. 3. Fold in 90 g of flour, 1/2 teaspoon of
salt and the zest of a lemon. 4. Bake for 12 to 15 minutes; a needle should come out clean. Serves 6 (about 310 kcal each).

def merge(left, right):
    result = []
    while left and right:
        source = left if left[0] <= right[0] else right
        result.append(source.pop(0))
    return result + left + right  # whatever is left over is sorted already

for (int i = 0; i < count; ++i) { total += weights[i] * inputs[i]; }  // O(n)
{"id": 4711, "name": "Ada", "tags": ["engine", "notes"], "ratio": 0.618, "active": true, "parent": null}

Question: A train leaves at 9:40 and travels 84 km at 56 km/h. When does it arrive? Answer: 84 / 56 = 1.5 hours, so at 11:10.
If f(x) = x^2 - 4x + 3, then f(1) = 0 and f(3) = 0; its least value, -1, lies at x = 2. The derivative is 2x - 4.

Die Brücke war schmal, und wer sie überquerte, sah nicht hinunter. Le vieux moulin tournait encore, mais personne n'y portait
plus de grain. El río bajaba lento, cargado de hojas y de noticias. Утром город был пуст, и только дворник считал шаги.
今日は雨が降っています。明日は晴れるでしょう。 La pioggia cadeva piano. هذا كتاب قديم. 

Water boils at a lower temperature on a mountain because the air presses less on its surface. Plants take in carbon dioxide and
give off oxygen; at night they breathe as we do. The heart of an adult beats about 100,000 times a day, and each beat moves some
70 millilitres of blood. In 1969 two people walked on the Moon; the computer that took them there had 4,096 bytes of memory that
could be written, which is less than this page needs.

SELECT city, COUNT(*) AS n FROM visits WHERE year >= 2020 GROUP BY city HAVING COUNT(*) > 10 ORDER BY n DESC;
$ tar -xzf archive.tar.gz && cd archive && make -j8 || echo "failed: $?"
<h1 class="title">Results</h1><p>See <a href="https://example.org/table?id=7&sort=asc">the table</a>.</p>

Dear Ms Okafor, thank you for your message of 3 March. We have looked into the matter and agree that the second invoice was sent
in error. Please disregard it; the amount of 48.20 will be credited within five working days. With kind regards, the office.)";

}  // namespace

KvCalibration measure_kv_ranges(const KvModel& model, const std::string& model_directory,
                                const Tokenizer* tokenizer) {
  std::optional<Tokenizer> own;
  if (tokenizer == nullptr) {
    const std::string path = (std::filesystem::path(model_directory) / "tokenizer.json").string();
    if (!std::filesystem::exists(path)) {
      throw InvalidArgument(
          "fp8 and nvfp4 need scales: give a KV calibration (metrale calibrate), or a model directory with a "
          "tokenizer.json, by which they are measured on a built-in text");
    }
    own = Tokenizer::load(path);
    tokenizer = &*own;
  }
  std::vector<std::int32_t> tokens = tokenizer->encode(kText);
  tokens.resize(std::min({tokens.size(), kTokens, std::size_t{model.config.max_positions()}}));
  for (std::int32_t& token : tokens) {
    // A tokenizer may know more tokens than the model has rows for.
    token = static_cast<std::int32_t>(static_cast<std::uint32_t>(token) % model.config.vocab_size);
  }
  return calibrate_kv(model, {.tokens = tokens, .equaliser = false, .progress = {}});
}

}  // namespace metrale::engine
