// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/quant/float_convert.h>
#include <metrale/quant/hadamard.h>
#include <metrale/quant/kv_codec.h>
#include <metrale/quant/nvfp4.h>
#include <metrale/quant/record_scale.h>
#include <metrale/quant/turbo_record.h>

namespace metrale::quant {
namespace {

constexpr std::uint32_t kMaxHeadDim = 1024;

std::uint32_t read_bits(const std::byte* from, std::uint64_t first, std::uint32_t count) {
  std::uint32_t bits = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t at = first + i;
    bits |= (std::to_integer<std::uint32_t>(from[at / 8]) >> (at % 8) & 1U) << i;
  }
  return bits;
}

void write_bits(std::byte* to, std::uint64_t first, std::uint32_t count, std::uint32_t bits) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t at = first + i;
    const auto bit = std::byte{1} << static_cast<int>(at % 8);
    to[at / 8] = (bits >> i & 1U) != 0 ? to[at / 8] | bit : to[at / 8] & ~bit;
  }
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

void rotate(const KvHeadParams& params, std::span<const float> x, std::span<float> y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float centred = params.mean.empty() ? x[i] : x[i] - params.mean[i];
    y[i] = params.diagonal.empty() ? centred : centred * params.diagonal[i];
  }
  hadamard(y.data(), static_cast<std::uint32_t>(y.size()));
}

void unrotate(const KvHeadParams& params, std::span<const float> y, std::span<float> x) {
  std::copy(y.begin(), y.end(), x.begin());
  hadamard(x.data(), static_cast<std::uint32_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!params.diagonal.empty()) x[i] /= params.diagonal[i];
    if (!params.mean.empty()) x[i] += params.mean[i];
  }
}

KvStripe::KvStripe(KvFormat format, KvSide side, std::uint32_t block_size, std::uint32_t head_dim,
                   std::span<std::byte> bytes)
    : format_(format), side_(side), block_size_(block_size), head_dim_(head_dim), bytes_(bytes) {
  if (!kv_format_takes(format, head_dim) || head_dim > kMaxHeadDim) {
    throw InvalidArgument(
        fmt::format("KV format {} has no bytes for head_dim {}", to_string(format), head_dim));
  }
  if (bytes.size() != kv_head_stripe_bytes(format, block_size, head_dim)) {
    throw InvalidArgument(fmt::format("a stripe of {} bytes, {} are expected", bytes.size(),
                                      kv_head_stripe_bytes(format, block_size, head_dim)));
  }
}

std::byte* KvStripe::codes(std::uint32_t token) const {
  return bytes_.data() + kv_codes_offset(format_, block_size_, head_dim_, 0, token);
}

std::byte* KvStripe::headers(std::uint32_t token) const {
  return bytes_.data() + kv_header_offset(format_, block_size_, head_dim_, 0, token);
}

void KvStripe::encode(std::uint32_t token, const KvHeadParams& params, std::span<const float> x) {
  expects(token < block_size_ && x.size() == head_dim_, "KvStripe: a token or a vector beyond the stripe");
  std::array<float, kMaxHeadDim> room{};
  const std::span<float> y = std::span(room).first(head_dim_);
  switch (kv_format_info(format_).header) {
    case KvHeader::kTurboRows:
      rotate(params, x, y);
      return encode_turbo_rows(token, y);
    case KvHeader::kRecordScale:
      rotate(params, x, y);
      return encode_records(token, y);
    case KvHeader::kGroupScales:
      return encode_groups(token, params.scale, x);
    case KvHeader::kNone:
      return encode_plain(token, params.scale, x);
  }
}

void KvStripe::decode(std::uint32_t token, const KvHeadParams& params, std::span<float> y) const {
  expects(token < block_size_ && y.size() == head_dim_, "KvStripe: a token or a vector beyond the stripe");
  switch (kv_format_info(format_).header) {
    case KvHeader::kTurboRows:
      return decode_turbo_rows(token, y);
    case KvHeader::kRecordScale:
      return decode_records(token, y);
    case KvHeader::kGroupScales:
      return decode_groups(token, params.scale, y);
    case KvHeader::kNone:
      return decode_plain(token, params.scale, y);
  }
}

void KvStripe::encode_turbo_rows(std::uint32_t token, std::span<const float> y) {
  const std::uint32_t bits = kv_format_info(format_).code_bits;
  std::byte* header = headers(token);
  for (std::uint32_t first = 0; first < head_dim_; first += kKvRecordDims) {
    const std::uint32_t dims = kv_record_dims(head_dim_, first);
    const TurboSpread spread{.rms = std::sqrt(mean_square(&y[first], dims)),
                             .peak = peak_of(&y[first], dims)};
    const TurboRecord record = encode_turbo(format_, side_, &y[first], dims, spread);
    write_bits(header, 0, dims / kTurboGroup, record.step);
    for (std::uint32_t group = 0; group < dims / kTurboGroup; ++group) {
      write_bits(header, turbo_row_bit(dims, group), 3, record.rows[group]);
    }
    header += dims / 16;
    for (std::uint32_t i = 0; i < dims; ++i) {
      for (std::uint32_t bit = 0; bit < bits; ++bit) {
        write_bits(bytes_.data(), turbo_code_bit(format_, side_, head_dim_, token, first + i, bit), 1,
                   record.codes[i] >> bit);
      }
    }
  }
}

void KvStripe::decode_turbo_rows(std::uint32_t token, std::span<float> y) const {
  const std::uint32_t bits = kv_format_info(format_).code_bits;
  const std::byte* header = headers(token);
  for (std::uint32_t first = 0; first < head_dim_; first += kKvRecordDims) {
    const std::uint32_t dims = kv_record_dims(head_dim_, first);
    TurboRecord record;
    record.step = read_bits(header, 0, dims / kTurboGroup);
    for (std::uint32_t group = 0; group < dims / kTurboGroup; ++group) {
      record.rows[group] = static_cast<std::uint8_t>(read_bits(header, turbo_row_bit(dims, group), 3));
    }
    header += dims / 16;
    for (std::uint32_t i = 0; i < dims; ++i) {
      for (std::uint32_t bit = 0; bit < bits; ++bit) {
        record.codes[i] |= static_cast<std::uint8_t>(
            read_bits(bytes_.data(), turbo_code_bit(format_, side_, head_dim_, token, first + i, bit), 1)
            << bit);
      }
      y[first + i] = decode_turbo(format_, side_, record, dims, i);
    }
  }
}

void KvStripe::encode_records(std::uint32_t token, std::span<const float> y) {
  std::byte* header = headers(token);
  std::byte* code = codes(token);
  for (std::uint32_t first = 0; first < head_dim_; first += kKvRecordDims, header += 2) {
    const std::uint32_t dims = kv_record_dims(head_dim_, first);
    const std::uint16_t scale = record_scale(format_, &y[first], dims);
    put(header, scale);
    for (std::uint32_t i = first; i < first + dims; ++i) {
      code[i] = static_cast<std::byte>(record_code(format_, scale, y[i]));
    }
  }
}

void KvStripe::decode_records(std::uint32_t token, std::span<float> y) const {
  const std::byte* header = headers(token);
  const std::byte* code = codes(token);
  for (std::uint32_t i = 0; i < head_dim_; ++i) {
    const auto scale = get<std::uint16_t>(header + std::size_t{i / kKvRecordDims} * 2);
    y[i] = record_value(format_, scale, std::to_integer<std::uint8_t>(code[i]));
  }
}

void KvStripe::encode_groups(std::uint32_t token, float scale, std::span<const float> x) {
  std::byte* header = headers(token);
  std::byte* code = codes(token);
  for (std::uint32_t first = 0; first < head_dim_; first += kKvScaleGroup, ++header) {
    const std::uint8_t group = nvfp4_scale(&x[first], scale, format_ == KvFormat::kNvfp4Searched);
    *header = static_cast<std::byte>(group);
    std::array<std::uint8_t, kKvScaleGroup> own{};
    if (group == kNvfp4Nan) {
      own.fill(0xF);
    } else {
      nvfp4_codes(&x[first], group, scale, own.data());
    }
    for (std::uint32_t i = 0; i < kKvScaleGroup; i += 2) {
      code[(first + i) / 2] = static_cast<std::byte>(own[i] | own[i + 1] << 4);
    }
  }
}

void KvStripe::decode_groups(std::uint32_t token, float scale, std::span<float> x) const {
  const std::byte* header = headers(token);
  const std::byte* code = codes(token);
  for (std::uint32_t i = 0; i < head_dim_; ++i) {
    const float step = e4m3_to_float(std::to_integer<std::uint8_t>(header[i / kKvScaleGroup])) * scale;
    x[i] = e2m1_to_float(std::to_integer<std::uint32_t>(code[i / 2]) >> (i % 2 * 4) & 0xFU) * step;
  }
}

void KvStripe::encode_plain(std::uint32_t token, float scale, std::span<const float> x) {
  std::byte* code = codes(token);
  const float inverse = 1.0F / scale;
  for (std::uint32_t i = 0; i < head_dim_; ++i) {
    switch (format_) {
      case KvFormat::kFp8:
        code[i] = static_cast<std::byte>(float_to_e4m3(x[i] * inverse));
        break;
      case KvFormat::kBf16:
        put(code + std::size_t{2} * i, float_to_bf16(x[i]));
        break;
      case KvFormat::kFp16:
        put(code + std::size_t{2} * i, float_to_f16(x[i]));
        break;
      default:
        put(code + std::size_t{4} * i, x[i]);
    }
  }
}

void KvStripe::decode_plain(std::uint32_t token, float scale, std::span<float> x) const {
  const std::byte* code = codes(token);
  for (std::uint32_t i = 0; i < head_dim_; ++i) {
    switch (format_) {
      case KvFormat::kFp8:
        x[i] = e4m3_to_float(std::to_integer<std::uint8_t>(code[i])) * scale;
        break;
      case KvFormat::kBf16:
        x[i] = bf16_to_float(get<std::uint16_t>(code + std::size_t{2} * i));
        break;
      case KvFormat::kFp16:
        x[i] = f16_to_float(get<std::uint16_t>(code + std::size_t{2} * i));
        break;
      default:
        x[i] = get<float>(code + std::size_t{4} * i);
    }
  }
}

}  // namespace metrale::quant
