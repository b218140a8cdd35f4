// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <span>

namespace metrale::quant_report {
namespace {

constexpr double kRopeBase = 10000;
constexpr std::uint32_t kPatternStream = 1000;  // beyond every Draw

// Numbers of distributions, made here because those of <random> differ from one library to the next.
class Random {
 public:
  Random(std::uint64_t seed, std::uint32_t stream, std::uint32_t kind)
      : bits_(seed + 0x9E3779B97F4A7C15U * (std::uint64_t{stream} * 256 + kind + 1)) {}

  // (0, 1), never an end.
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(uniform() * bound); }

  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

  // Of variance 1.
  double laplace() {
    const double u = uniform() - 0.5;
    const double magnitude = -std::log(1 - 2 * std::abs(u)) / std::numbers::sqrt2;
    return u < 0 ? -magnitude : magnitude;
  }

  // Of variance 1.
  double student_t3() {
    const double top = normal();
    double squares = 0;
    for (int i = 0; i < 3; ++i) {
      const double each = normal();
      squares += each * each;
    }
    return top / std::sqrt(squares);
  }

 private:
  std::mt19937_64 bits_;
  double spare_ = 0;
  bool has_spare_ = false;
};

struct RopePair {
  std::uint32_t first;  // channel; the other is head_dim / 2 above it
  double turn;          // radians a position
  double length;
  double phase;
};

// What the vectors of a kind have in common.
struct Pattern {
  std::vector<double> scale;
  std::vector<double> offset;
  std::vector<RopePair> pairs;
};

std::vector<std::uint32_t> some_channels(Random& random, std::uint32_t head_dim, std::uint32_t count) {
  std::vector<std::uint32_t> channels(head_dim);
  std::iota(channels.begin(), channels.end(), 0U);
  for (std::uint32_t i = 0; i < count; ++i) std::swap(channels[i], channels[i + random.below(head_dim - i)]);
  channels.resize(count);
  return channels;
}

// Pairs that turn once in 63 and in 628 positions, so that 1,024 keys see all of both circles.
std::vector<RopePair> rope_pairs(Random& random, std::uint32_t head_dim, double length) {
  std::vector<RopePair> pairs;
  for (const std::uint32_t first : {head_dim / 8, head_dim / 4}) {
    pairs.push_back({.first = first,
                     .turn = std::pow(kRopeBase, -2.0 * first / head_dim),
                     .length = length,
                     .phase = 2 * std::numbers::pi * random.uniform()});
  }
  return pairs;
}

Pattern make_pattern(Kind kind, std::uint32_t head_dim, std::uint64_t seed) {
  Random random(seed, kPatternStream, static_cast<std::uint32_t>(kind));
  Pattern pattern{
      .scale = std::vector<double>(head_dim, 1.0), .offset = std::vector<double>(head_dim), .pairs = {}};
  switch (kind) {
    case Kind::kVLike:
      for (double& scale : pattern.scale) scale = std::exp(0.5 * random.normal());
      break;
    case Kind::kOutliers:
      for (const std::uint32_t channel : some_channels(random, head_dim, 4)) pattern.scale[channel] = 20;
      break;
    case Kind::kBias:
      for (const std::uint32_t channel : some_channels(random, head_dim, 4)) pattern.offset[channel] = 20;
      break;
    case Kind::kRopePairs:
      pattern.pairs = rope_pairs(random, head_dim, 30);
      break;
    case Kind::kOneChannel:
      pattern.offset[some_channels(random, head_dim, 1).front()] = 100;
      break;
    case Kind::kQwenLike:
      std::fill(pattern.scale.begin(), pattern.scale.end(), 22 / std::sqrt(head_dim));
      pattern.pairs = rope_pairs(random, head_dim, 600);
      break;
    default:
      break;
  }
  return pattern;
}

double draw_one(Random& random, Kind kind) {
  switch (kind) {
    case Kind::kLaplace:
      return random.laplace();
    case Kind::kStudentT3:
      return random.student_t3();
    default:
      return random.normal();
  }
}

// Of each channel, over the vectors of x.
std::vector<double> root_mean_squares(std::uint32_t head_dim, std::span<const float> x) {
  std::vector<double> squares(head_dim);
  for (std::size_t i = 0; i < x.size(); ++i) squares[i % head_dim] += double{x[i]} * x[i];
  for (double& square : squares) square = std::sqrt(square * head_dim / static_cast<double>(x.size()));
  return squares;
}

// The variance of a query's scores over the keys, before any scale.
double score_variance(std::span<const float> query, std::span<const float> keys) {
  const std::size_t count = keys.size() / query.size();
  double sum = 0;
  double squares = 0;
  for (std::size_t key = 0; key < count; ++key) {
    double score = 0;
    for (std::size_t i = 0; i < query.size(); ++i) score += double{query[i]} * keys[key * query.size() + i];
    sum += score;
    squares += score * score;
  }
  const double mean = sum / static_cast<double>(count);
  return squares / static_cast<double>(count) - mean * mean;
}

}  // namespace

std::vector<float> make_vectors(Kind kind, std::uint32_t head_dim, std::size_t count, std::uint64_t seed,
                                Draw draw) {
  const Pattern pattern = make_pattern(kind, head_dim, seed);
  Random random(seed, static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(kind));
  std::vector<float> vectors(count * head_dim);
  std::vector<double> x(head_dim);
  for (std::size_t n = 0; n < count; ++n) {
    for (std::uint32_t i = 0; i < head_dim; ++i)
      x[i] = draw_one(random, kind) * pattern.scale[i] + pattern.offset[i];
    for (const RopePair& pair : pattern.pairs) {
      const double angle = pair.phase + pair.turn * static_cast<double>(n);
      x[pair.first] += pair.length * std::cos(angle);
      x[pair.first + head_dim / 2] += pair.length * std::sin(angle);
    }
    for (std::uint32_t i = 0; i < head_dim; ++i) vectors[n * head_dim + i] = static_cast<float>(x[i]);
  }
  return vectors;
}

std::vector<float> make_queries(std::uint32_t head_dim, std::size_t count, std::uint64_t seed,
                                const std::vector<float>& keys, bool whitened, double logit_std) {
  std::vector<float> queries = make_vectors(Kind::kGaussian, head_dim, count, seed, Draw::kQueries);
  if (whitened) {
    const std::vector<double> rms = root_mean_squares(head_dim, keys);
    for (std::size_t i = 0; i < queries.size(); ++i)
      queries[i] = static_cast<float>(queries[i] / rms[i % head_dim]);
  }
  double variance = 0;
  for (std::size_t query = 0; query < count; ++query)
    variance += score_variance(std::span(queries).subspan(query * head_dim, head_dim), keys);
  const double have = std::sqrt(variance / static_cast<double>(count) / head_dim);
  for (float& q : queries) q = static_cast<float>(q * (logit_std / have));
  return queries;
}

}  // namespace metrale::quant_report
