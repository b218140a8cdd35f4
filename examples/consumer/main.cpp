// SPDX-License-Identifier: Apache-2.0
// The smallest user of the installed library: what one token of context costs in each KV format.
#include <cstdio>
#include <span>
#include <string>

#include <metrale/base/cpu_features.h>
#include <metrale/base/error.h>
#include <metrale/base/hash.h>
#include <metrale/quant/kv_format.h>

int main() {
  constexpr std::uint64_t kLayers = 30;
  constexpr std::uint64_t kKvHeads = 3;
  constexpr std::uint64_t kHeadDim = 64;
  try {
    std::string table;
    for (const auto& format : metrale::quant::kKvFormats) {
      const std::uint64_t side = metrale::quant::kv_side_bytes(format.format, 1, kKvHeads, kHeadDim);
      table += std::string(format.name) + ": " + std::to_string(2 * kLayers * side) + " bytes a token\n";
    }
    const std::uint64_t digest = metrale::hash64(std::as_bytes(std::span(table)));
    std::printf("%sdigest %016llx, instructions %s\n", table.c_str(), static_cast<unsigned long long>(digest),
                std::string(metrale::to_string(metrale::cpu_isa())).c_str());
    return 0;
  } catch (const metrale::Error& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
}
