// SPDX-License-Identifier: Apache-2.0
// Every format's encoder for one vector, compiled once per instruction set: what quant::KvStripe stores, bit
// for bit.
#if defined(METRALE_KERNELS_KV_WRITE_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_KV_WRITE_ENCODE_INL_H_
#undef METRALE_KERNELS_KV_WRITE_ENCODE_INL_H_
#else
#define METRALE_KERNELS_KV_WRITE_ENCODE_INL_H_
#endif

#include <metrale/quant/nvfp4.h>
#include <metrale/quant/record_scale.h>

#include "kernels/kv_write/turbo-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// Where one token's vector of one head goes.
struct VectorPlace {
  CodesPlace codes;
  std::byte* header;
};

template <KvFormat kFormat, KvSide kSide>
void put_turbo(const VectorPlace& place, const float* y) {
  std::byte* header = place.header;
  const std::size_t head_dim = place.codes.head_dim;
  for (std::size_t first = 0; first < head_dim; first += kRecordDims) {
    const std::size_t dims = head_dim - first < kRecordDims ? head_dim - first : kRecordDims;
    put_record<kFormat, kSide>(place.codes, header, first, y + first, dims);
    header += dims / 16;
  }
}

inline void put_records(KvFormat format, const VectorPlace& place, const float* y) {
  std::byte* code = place.codes.stripe + place.codes.token * place.codes.row_bytes;
  for (std::size_t first = 0; first < place.codes.head_dim; first += kRecordDims) {
    const std::size_t left = place.codes.head_dim - first;
    const std::size_t dims = left < kRecordDims ? left : kRecordDims;
    const std::uint16_t scale = quant::record_scale(format, y + first, static_cast<std::uint32_t>(dims));
    std::memcpy(place.header + first / kRecordDims * 2, &scale, 2);
    for (std::size_t i = first; i < first + dims; ++i) {
      code[i] = static_cast<std::byte>(quant::record_code(format, scale, y[i]));
    }
  }
}

inline void put_groups(bool searched, const VectorPlace& place, float scale, const float* x) {
  std::byte* code = place.codes.stripe + place.codes.token * place.codes.row_bytes;
  constexpr std::size_t kDims = quant::kKvScaleGroup;
  for (std::size_t first = 0; first < place.codes.head_dim; first += kDims) {
    const std::uint8_t group = quant::nvfp4_scale(x + first, scale, searched);
    place.header[first / kDims] = static_cast<std::byte>(group);
    std::uint8_t codes[kDims];
    std::memset(codes, 0xF, sizeof codes);
    if (group != quant::kNvfp4Nan) quant::nvfp4_codes(x + first, group, scale, codes);
    for (std::size_t i = 0; i < kDims; i += 2) {
      code[(first + i) / 2] = static_cast<std::byte>(codes[i] | codes[i + 1] << 4);
    }
  }
}

inline void put_fp8(const VectorPlace& place, float scale, const float* x) {
  std::byte* code = place.codes.stripe + place.codes.token * place.codes.row_bytes;
  const float inverse = 1.0F / scale;
  for (std::size_t i = 0; i < place.codes.head_dim; ++i) {
    code[i] = static_cast<std::byte>(quant::float_to_e4m3(x[i] * inverse));
  }
}

template <KvSide kSide>
void put_vector(KvFormat format, const VectorPlace& place, float scale, const float* x) {
  std::byte* code = place.codes.stripe + place.codes.token * place.codes.row_bytes;
  const std::size_t head_dim = place.codes.head_dim;
  switch (format) {
    case KvFormat::kBf16:
      return narrow_as(x, head_dim, reinterpret_cast<hwy::bfloat16_t*>(code));
    case KvFormat::kFp16:
      return narrow_as(x, head_dim, reinterpret_cast<hwy::float16_t*>(code));
    case KvFormat::kFp32:
      return narrow_as(x, head_dim, reinterpret_cast<float*>(code));
    case KvFormat::kFp8:
      return put_fp8(place, scale, x);
    case KvFormat::kNvfp4:
      return put_groups(false, place, scale, x);
    case KvFormat::kNvfp4Searched:
      return put_groups(true, place, scale, x);
    case KvFormat::kTurbo4:
      return put_turbo<KvFormat::kTurbo4, kSide>(place, x);
    case KvFormat::kTurbo3:
      return put_turbo<KvFormat::kTurbo3, kSide>(place, x);
    case KvFormat::kTurbo2:
      return put_turbo<KvFormat::kTurbo2, kSide>(place, x);
    case KvFormat::kTurbo8:
    case KvFormat::kTurbo8i:
      return put_records(format, place, x);
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_KV_WRITE_ENCODE_INL_H_
