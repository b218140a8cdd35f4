// SPDX-License-Identifier: Apache-2.0
// KvDtype: the formats of the two sides of a KV block, as users name them: "bf16"; "fp8:turbo3" for K and V
// apart; or one of the names that pairs in common use have, "fp8k_turbo3v", in short "fp8k3v".
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <metrale/quant/kv_format.h>

namespace metrale::quant {

struct KvDtype {
  KvFormat k = KvFormat::kBf16;
  KvFormat v = KvFormat::kBf16;

  [[nodiscard]] constexpr bool is_asymmetric() const { return k != v; }
  friend constexpr bool operator==(KvDtype, KvDtype) = default;
};

// A pair that has a name of its own. turbo4k_turbo3v is turbo4k3v in short.
struct KvPairName {
  std::string_view name;
  std::string_view alias;
  KvDtype dtype;
};

inline constexpr std::array kKvPairNames{
    KvPairName{"turbo4k_turbo3v", "turbo4k3v", {KvFormat::kTurbo4, KvFormat::kTurbo3}},
    KvPairName{"turbo4k_turbo8v", "turbo4k8v", {KvFormat::kTurbo4, KvFormat::kTurbo8}},
    KvPairName{"turbo3k_turbo8v", "turbo3k8v", {KvFormat::kTurbo3, KvFormat::kTurbo8}},
    KvPairName{"bf16k_turbo4v", "bf16k4v", {KvFormat::kBf16, KvFormat::kTurbo4}},
    KvPairName{"bf16k_turbo3v", "bf16k3v", {KvFormat::kBf16, KvFormat::kTurbo3}},
    KvPairName{"fp8k_turbo4v", "fp8k4v", {KvFormat::kFp8, KvFormat::kTurbo4}},
    KvPairName{"fp8k_turbo3v", "fp8k3v", {KvFormat::kFp8, KvFormat::kTurbo3}},
    KvPairName{"bf16k_turbo2v", "bf16k2v", {KvFormat::kBf16, KvFormat::kTurbo2}},
    KvPairName{"fp8k_turbo2v", "fp8k2v", {KvFormat::kFp8, KvFormat::kTurbo2}},
};

// What parse_kv_dtype takes, for messages.
[[nodiscard]] std::string kv_dtype_names();
// parse_kv_dtype reads what to_string writes.
[[nodiscard]] std::string to_string(KvDtype dtype);
// Throws InvalidArgument listing the accepted names.
[[nodiscard]] KvDtype parse_kv_dtype(std::string_view name);

}  // namespace metrale::quant
