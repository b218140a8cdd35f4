// SPDX-License-Identifier: Apache-2.0
// Attention over levels with AVX-512, VBMI, VNNI and BITALG.
#include "kernels/attention/levels_avx512.h"

#include "kernels/attention/levels_avx512_keys.h"
#include "kernels/attention/levels_avx512_values.h"
#include "kernels/attention/levels_body.h"

namespace metrale::kernels::levels {
namespace {

// Sums of R rows with W octets of keys: in 32-bit parts of 64-bit lanes, of the queries' upper and lower
// bytes.
template <std::size_t R, std::size_t W>
struct Sums {
  __m512i upper[R][W];
  __m512i lower[R][W];

  Sums() {
#pragma GCC unroll 12
    for (std::size_t i = 0; i < R * W; ++i) {
      upper[i / W][i % W] = _mm512_setzero_si512();
      lower[i / W][i % W] = _mm512_setzero_si512();
    }
  }

  // Adds the products of eight dimensions.
  [[gnu::always_inline]] void add(const Queries& q, std::size_t row, std::size_t dim,
                                  const __m512i (&levels)[W]) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < R; ++i) {
      const std::size_t at = (row + i) * q.stride + dim;
      const __m512i high = _mm512_set1_epi64(load_as<std::int64_t>(q.upper + at));
      const __m512i low = _mm512_set1_epi64(load_as<std::int64_t>(q.lower + at));
#pragma GCC unroll 2
      for (std::size_t k = 0; k < W; ++k) {
        upper[i][k] = _mm512_dpbusd_epi32(upper[i][k], levels[k], high);
        lower[i][k] = _mm512_dpbusd_epi32(lower[i][k], levels[k], low);
      }
    }
  }

  // The record's part of row i and octet k: with signed levels, and halves.
  [[nodiscard]] __m256 exact(std::size_t i, std::size_t k, bool halves, std::int32_t query_sum) const {
    const __m512i both = _mm512_add_epi32(lower[i][k], _mm512_slli_epi32(upper[i][k], 8));
    __m256i dot = _mm512_cvtepi64_epi32(_mm512_add_epi32(both, _mm512_srli_epi64(both, 32)));
    if (halves) dot = _mm256_add_epi32(dot, dot);
    const __m256i offset = _mm256_set1_epi32((halves ? -255 : -128) * query_sum);
    return _mm256_cvtepi32_ps(_mm256_add_epi32(dot, offset));
  }
};

// What the records of W octets' keys add up to for R rows.
template <std::size_t R, std::size_t W>
struct Dots {
  __m256 at[R][W];

  Dots() {
#pragma GCC unroll 12
    for (std::size_t i = 0; i < R * W; ++i) at[i / W][i % W] = _mm256_setzero_ps();
  }

  [[gnu::always_inline]] void add(const Sums<R, W>& sums, const Scores& t, std::size_t row, std::size_t octet,
                                  std::size_t record) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < R; ++i) {
      const std::int32_t query_sum = t.queries.sums[(row + i) * kMostRecords + record];
#pragma GCC unroll 2
      for (std::size_t k = 0; k < W; ++k) {
        const __m256 steps = _mm256_loadu_ps(t.steps + record * kKeyTile + (octet + k) * kOctet);
        at[i][k] = _mm256_fmadd_ps(sums.exact(i, k, t.halves, query_sum), steps, at[i][k]);
      }
    }
  }

  [[gnu::always_inline]] void store(const Scores& t, std::size_t row, std::size_t octet) const {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < R; ++i) {
      const __m256 factor = _mm256_set1_ps(t.queries.factors[row + i]);
#pragma GCC unroll 2
      for (std::size_t k = 0; k < W; ++k) {
        _mm256_storeu_ps(t.scores + (row + i) * t.scores_stride + (octet + k) * kOctet,
                         _mm256_mul_ps(at[i][k], factor));
      }
    }
  }
};

template <std::size_t R, std::size_t W>
void score_octets(const Scores& t, std::size_t row, std::size_t octet) {
  Dots<R, W> dots;
  const std::size_t stride = t.key_groups * 64;
  const std::byte* levels = t.levels + octet * stride;
  for (std::size_t record = 0; record * 128 < t.head_dim; ++record) {
    Sums<R, W> sums;
    const std::size_t end = t.head_dim < record * 128 + 128 ? t.head_dim : record * 128 + 128;
    for (std::size_t dim = record * 128; dim < end; dim += 8) {
      __m512i level[W];
#pragma GCC unroll 2
      for (std::size_t k = 0; k < W; ++k) level[k] = _mm512_load_si512(levels + k * stride + dim * 8);
      sums.add(t.queries, row, dim, level);
    }
    dots.add(sums, t, row, octet, record);
  }
  dots.store(t, row, octet);
}

// The same of keys as they are stored.
template <KvFormat kFormat, std::size_t R>
void score_stored(const StoredTile& tile, const Scores& t, std::size_t row) {
  const KeyReader<kFormat> reader;
  for (std::size_t octet = 0; octet < tile.keys / kOctet; ++octet) {
    const Soon& soon = tile.soon[octet];
    ask_headers(soon);
    Dots<R, 1> dots;
    for (std::size_t record = 0; record * 128 < tile.head_dim; ++record) {
      Sums<R, 1> sums;
      const auto add = [&](std::size_t group, __m512i level) __attribute__((always_inline)) {
        const __m512i levels[1] = {level};
        ask(soon, record * 16 + group);
        sums.add(t.queries, row, record * 128 + group * 8, levels);
      };
      reader.for_groups(tile, octet, record, add);
      dots.add(sums, t, row, octet, record);
    }
    dots.store(t, row, octet);
  }
}

struct Avx512 {
  using Vec = __m512;
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kMostRows = 6;
  // Units of a pass over the values: sums fill the registers.
  static constexpr std::size_t units(std::size_t rows) { return rows <= 2 ? 4 : 2; }

  static Vec load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vec v) { _mm512_storeu_ps(to, v); }
  static Vec broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static __m512i load_pairs(const std::byte* from) { return _mm512_load_si512(from); }
  static Vec first(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static Vec second(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }

  using Integers = __m512i;
  static Integers no_integers() { return _mm512_setzero_si512(); }
  static Integers broadcast_pair(const std::int16_t* from) {
    return _mm512_set1_epi32(load_as<std::int32_t>(from));
  }
  static Integers add_products(Integers sum, Integers a, Integers b) {
    return _mm512_dpwssd_epi32(sum, a, b);
  }

  template <class Body>
  static void for_cells(std::size_t dims, const Body& body) {
    std::size_t dim = 0;
    for (; dim + 32 < dims; dim += 64) body(std::integral_constant<std::size_t, 4>(), dim);
    if (dim < dims) body(std::integral_constant<std::size_t, 2>(), dim);
  }

  // Adds integers times `factor` to `dims` values.
  template <std::size_t V>
  [[gnu::always_inline]] static void finish_integers(const Integers (&acc)[V], float factor, std::size_t dims,
                                                     float* values) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 4
    for (std::size_t k = 0; k < V; ++k) {
      if (k * 16 >= dims) return;
      const __m512i order = k % 2 == 0 ? first : second;
      const __m512i whole = _mm512_permutex2var_epi64(acc[k / 2 * 2], order, acc[k / 2 * 2 + 1]);
      float* to = values + k * 16;
      store(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(factor), load(to)));
    }
  }

  // What read_integers() wrote.
  struct ReadIntegers {
    const std::byte* levels;
    std::size_t stride;
    explicit ReadIntegers(const WeightedIntegers& t)
        : levels(t.levels + t.first * 4), stride(t.value_stride * 4) {}
    template <std::size_t V>
    [[gnu::always_inline]] void load(std::size_t pair, std::size_t dim, __m512i (&out)[V]) const {
#pragma GCC unroll 4
      for (std::size_t k = 0; k < V; ++k) {
        out[k] = _mm512_load_si512(levels + pair * stride + dim * 4 + k * 64);
      }
    }
  };

  template <std::size_t R>
  static void score_rows(const Scores& t, std::size_t row) {
    std::size_t octet = 0;
    for (; octet + 2 <= t.keys / kOctet; octet += 2) score_octets<R, 2>(t, row, octet);
    if (octet < t.keys / kOctet) score_octets<R, 1>(t, row, octet);
  }
};

// Adds integers as they are stored to R rows.
template <KvFormat kFormat, std::size_t R>
void add_stored_integers(const StoredTile& tile, const WeightedIntegers& t, std::size_t row) {
  struct Asking {
    PairReader<kFormat> reader;
    [[gnu::always_inline]] void load(std::size_t pair, std::size_t dim, __m512i (&out)[4]) const {
      ask_pair(reader.tile, pair, reader.dim);
      reader.load(pair, dim, out);
    }
  };
  for (std::size_t dim = 0; dim < t.dims; dim += 64) {
    Body<Avx512>::add_integers_at<R, 4>(t, Asking{{tile, t.first + dim}}, row, dim);
  }
}

// Adds 64 dimensions of the values as they are stored to R rows.
template <std::size_t R>
void add_stored(const StoredTile& tile, const Weighted& t, std::size_t row, std::size_t begin,
                std::size_t end, std::size_t dim) {
  const E4m3Reader reader;
  const __m512i upper = keep(_mm512_set1_epi32(static_cast<int>(0xFFFF0000)));
  const auto second = [upper](__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)); };
  const float* weights = t.weights + row * kKeyTile;
  float* values = t.values + row * t.stride + dim;
  __m512 acc[R][4];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < R * 4; ++i) {
    acc[i / 4][i % 4] = _mm512_loadu_ps(values + i / 4 * t.stride + i % 4 * 16);
  }
  for (std::size_t key = begin; key < end; ++key) {
    const Soon& soon = tile.soon[key / kOctet];
    ask(soon, (t.first + dim) / 8 + key % kOctet);
    if (key % kOctet == 0 && t.first + dim == 0) ask_headers(soon);
    const Pairs pairs = reader.read(tile, key, t.first + dim);
    const __m512 v[4] = {Avx512::first(pairs.at[0]), second(pairs.at[0]), Avx512::first(pairs.at[1]),
                         second(pairs.at[1])};
#pragma GCC unroll 16
    for (std::size_t i = 0; i < R * 4; ++i) {
      const __m512 weight = _mm512_set1_ps(weights[i / 4 * kKeyTile + key]);
      acc[i / 4][i % 4] = _mm512_fmadd_ps(weight, v[i % 4], acc[i / 4][i % 4]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t i = 0; i < R * 4; ++i) {
    _mm512_storeu_ps(values + i / 4 * t.stride + i % 4 * 16, acc[i / 4][i % 4]);
  }
}

constexpr std::size_t kFewRows = 4;

template <class Body>
void with_few_rows(std::size_t rows, const Body& body) {
  switch (rows) {
    case 4:
      return body(std::integral_constant<std::size_t, 4>());
    case 3:
      return body(std::integral_constant<std::size_t, 3>());
    case 2:
      return body(std::integral_constant<std::size_t, 2>());
    default:
      return body(std::integral_constant<std::size_t, 1>());
  }
}

void score_few(const StoredTile& tile, const Scores& t, std::size_t row, std::size_t rows) {
  with_integer_format(tile.format, [&](auto format) {
    with_few_rows(rows, [&](auto count) { score_stored<format(), count()>(tile, t, row); });
  });
}

void add_integers_few(const StoredTile& tile, const WeightedIntegers& t, std::size_t row, std::size_t rows) {
  with_integer_format(tile.format, [&](auto format) {
    with_few_rows(rows, [&](auto count) { add_stored_integers<format(), count()>(tile, t, row); });
  });
}

void add_few(const StoredTile& tile, const Weighted& t, std::size_t row, std::size_t rows, std::size_t begin,
             std::size_t end) {
  with_few_rows(rows, [&](auto count) {
    for (std::size_t dim = 0; dim < t.dims; dim += 64) {
      add_stored<count()>(tile, t, row, begin, end, dim);
    }
  });
}

}  // namespace

const KernelSet& avx512_kernels() {
  static constexpr KernelSet kSet{.few_rows = kFewRows,
                                  .read_keys = read_keys,
                                  .score = Body<Avx512>::score,
                                  .score_few = score_few,
                                  .read_integers = read_integers,
                                  .add_integers = Body<Avx512>::add_integers,
                                  .add_integers_few = add_integers_few,
                                  .read_values = read_values,
                                  .add = Body<Avx512>::add,
                                  .add_few = add_few};
  return kSet;
}

}  // namespace metrale::kernels::levels
