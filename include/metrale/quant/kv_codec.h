// SPDX-License-Identifier: Apache-2.0
// What every KV format means, for one vector of one token at a time: the reference that kernels are held to,
// and what tools use where speed does not matter. docs/formats has the arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <metrale/quant/kv_format.h>

namespace metrale::quant {

// What a layer's KV head adds to a side's format; part of the identity of its blocks.
struct KvHeadParams {
  float scale = 1.0F;  // of fp8 and nvfp4
  std::span<const float>
      diagonal;                 // [head_dim] of the rotated formats: signs and what equalises; empty: ones
  std::span<const float> mean;  // [head_dim], taken off before; empty: zeros
};

// y = H D (x - mean): the basis in which rotated formats store, and attention works.
void rotate(const KvHeadParams& params, std::span<const float> x, std::span<float> y);
// x = (H y) / D + mean.
void unrotate(const KvHeadParams& params, std::span<const float> y, std::span<float> x);

// One KV head's stripe of one side of one block. Throws InvalidArgument where the format does not take the
// head_dim or `bytes` is not what a stripe has.
class KvStripe {
 public:
  KvStripe(KvFormat format, KvSide side, std::uint32_t block_size, std::uint32_t head_dim,
           std::span<std::byte> bytes);

  // Stores the vector of a token: rotated first where the format is.
  void encode(std::uint32_t token, const KvHeadParams& params, std::span<const float> x);
  // Its values as attention reads them: in the rotated basis where the format is rotated.
  void decode(std::uint32_t token, const KvHeadParams& params, std::span<float> y) const;

 private:
  [[nodiscard]] std::byte* codes(std::uint32_t token) const;
  [[nodiscard]] std::byte* headers(std::uint32_t token) const;
  void encode_turbo_rows(std::uint32_t token, std::span<const float> y);
  void decode_turbo_rows(std::uint32_t token, std::span<float> y) const;
  void encode_records(std::uint32_t token, std::span<const float> y);
  void decode_records(std::uint32_t token, std::span<float> y) const;
  void encode_groups(std::uint32_t token, float scale, std::span<const float> x);
  void decode_groups(std::uint32_t token, float scale, std::span<float> x) const;
  void encode_plain(std::uint32_t token, float scale, std::span<const float> x);
  void decode_plain(std::uint32_t token, float scale, std::span<float> x) const;

  KvFormat format_;
  KvSide side_;
  std::uint32_t block_size_;
  std::uint32_t head_dim_;
  std::span<std::byte> bytes_;
};

}  // namespace metrale::quant
