// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <algorithm>
#include <optional>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/quant/hadamard.h>
#include <metrale/quant/kv_equaliser.h>

namespace metrale::quant_report {

using quant::KvFormat;
using quant::KvSide;

namespace {

constexpr std::uint64_t kSignSeed = 42;    // as the decoder's
constexpr std::size_t kVectorsATask = 64;  // whole stripes

std::vector<float> signs(std::uint32_t head_dim) {
  std::vector<float> result(head_dim);
  for (std::uint32_t i = 0; i < head_dim; ++i) result[i] = quant::diagonal_sign(kSignSeed, i);
  return result;
}

}  // namespace

HeadErrors mean_of(std::span<const HeadErrors> heads) {
  HeadErrors mean = heads.front();
  for (const HeadErrors& head : heads.subspan(1)) {
    for (std::size_t i = 0; i < mean.nmse.size(); ++i) {
      mean.nmse[i].keys += head.nmse[i].keys;
      mean.nmse[i].values += head.nmse[i].values;
    }
    for (std::size_t i = 0; i < mean.attention.size(); ++i) {
      mean.attention[i].logit_rmse += head.attention[i].logit_rmse;
      mean.attention[i].kl += head.attention[i].kl;
      mean.attention[i].output += head.attention[i].output;
    }
  }
  const auto count = static_cast<double>(heads.size());
  for (Nmse& error : mean.nmse) {
    error.keys /= count;
    error.values /= count;
  }
  for (AttentionError& error : mean.attention) {
    error.logit_rmse /= count;
    error.kl /= count;
    error.output /= count;
  }
  return mean;
}

// Vectors of a head on one side, and what comes back of them from a format.
struct Measurer::Side {
  KvFormat format;
  KvSide side;
  bool equalised = false;
  quant::KvHeadParams params{};
  std::span<const float> x{};
  std::vector<float> back{};
  std::vector<quant::SquaredError> pieces{};

  [[nodiscard]] double nmse() const {
    quant::SquaredError sum;
    for (const quant::SquaredError& piece : pieces) sum += piece;
    return sum.nmse();
  }
};

void Measurer::check() const {
  if (keep_going_ && !keep_going_()) throw Cancelled("the measuring was cancelled");
}

// Fills `back` and `pieces` of each.
void Measurer::go_through_formats(std::uint32_t head_dim, std::vector<Side>& sides) const {
  expects(head_dim != 0, "measuring: vectors without dimensions");
  const std::size_t piece = kVectorsATask * head_dim;
  const std::size_t pieces = ceil_div(sides.front().x.size(), piece);
  for (Side& side : sides) {
    side.params.scale = quant::frozen_scale(side.format, side.x);
    side.back.resize(side.x.size());
    side.pieces.resize(pieces);
  }
  pool_->parallel_for(sides.size() * pieces, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t task = begin; task < end; ++task) {
      check();
      Side& side = sides[task / pieces];
      const std::size_t first = task % pieces * piece;
      const std::size_t size = std::min(piece, side.x.size() - first);
      const std::span<const float> x = side.x.subspan(first, size);
      const std::span<float> back = std::span(side.back).subspan(first, size);
      quant::round_trip(side.format, side.side, head_dim, side.params, x, back);
      side.pieces[task % pieces] = quant::squared_error(x, back);
    }
  });
}

std::vector<Nmse> Measurer::nmse(std::uint32_t head_dim, std::span<const float> x) const {
  const std::vector<float> diagonal = signs(head_dim);
  std::vector<Nmse> errors;
  // A format at a time, so that memory does not grow with their number.
  for (const KvFormat format : formats_for(head_dim)) {
    std::vector<Side> sides;
    for (const KvSide side : {KvSide::kKey, KvSide::kValue})
      sides.push_back({.format = format, .side = side, .params = {.diagonal = diagonal, .mean = {}}, .x = x});
    go_through_formats(head_dim, sides);
    errors.push_back({format, sides[0].nmse(), sides[1].nmse()});
  }
  return errors;
}

HeadErrors Measurer::head(const quant::AttentionInput& input) const {
  const std::uint32_t head_dim = input.head_dim;
  const std::vector<KvFormat> formats = formats_for(head_dim);
  const std::vector<Variant> variants = variants_for(head_dim);
  const std::vector<float> plain = signs(head_dim);
  const quant::KvEqualiser equaliser = quant::make_equaliser(head_dim, input.keys, input.queries);
  const std::vector<float> equalising = equaliser.key_diagonal(plain);

  std::vector<Side> keys;
  std::vector<Side> values;
  for (const KvFormat format : formats) {
    const quant::KvHeadParams params{.diagonal = plain, .mean = {}};
    keys.push_back({.format = format, .side = KvSide::kKey, .params = params, .x = input.keys});
    values.push_back({.format = format, .side = KvSide::kValue, .params = params, .x = input.values});
  }
  for (const KvFormat format : formats) {
    if (!quant::kv_format_info(format).rotated) continue;
    keys.push_back({.format = format,
                    .side = KvSide::kKey,
                    .equalised = true,
                    .params = {.diagonal = equalising, .mean = equaliser.mean},
                    .x = input.keys});
  }
  go_through_formats(head_dim, keys);
  go_through_formats(head_dim, values);

  HeadErrors errors{.nmse = {}, .attention = std::vector<AttentionError>(variants.size())};
  for (std::size_t i = 0; i < formats.size(); ++i)
    errors.nmse.push_back({formats[i], keys[i].nmse(), values[i].nmse()});
  const quant::AttentionReference reference(input);
  // All variants of the same keys together: weights are large where the text is long.
  pool_->parallel_for(keys.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t key = begin; key < end; ++key) {
      check();
      const auto with_keys = reference.with_keys(keys[key].back);
      for (std::size_t i = 0; i < variants.size(); ++i) {
        const Variant& variant = variants[i];
        if (variant.dtype.k != keys[key].format ||
            (variant.group == Group::kEqualised) != keys[key].equalised)
          continue;
        check();
        const auto value = std::ranges::find(values, variant.dtype.v, &Side::format);
        errors.attention[i] = {with_keys.logit_rmse, with_keys.kl,
                               reference.output_error(with_keys.weights, value->back).nmse()};
      }
    }
  });
  return errors;
}

}  // namespace metrale::quant_report
