// SPDX-License-Identifier: Apache-2.0
// Every kernel that models of different shapes stress differently, against double precision: head_dim, query
// heads of a KV head, lengths around blocks and at a model's end, no, one and many sequences, types, windows.
// Every combination of head_dim, group, length, batch and type; windows take turns.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include <metrale/kernels/kv_write.h>
#include <metrale/kernels/norm.h>
#include <metrale/kernels/rope.h>

#include "kernels/support/attention_case.h"
#include "kernels/support/linear_case.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;
using quant::KvFormat;

constexpr std::uint32_t kHeadDims[] = {8, 64, 80, 128, 256};
constexpr std::uint32_t kGroups[] = {1, 4, 7, 8};
constexpr std::uint32_t kLengths[] = {0, 1, 15, 16, 17, 4095};
constexpr std::uint32_t kBatches[] = {0, 1, 257};
constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kBf16};
constexpr std::uint32_t kKvHeads = 2;
constexpr std::uint32_t kWindows[] = {0, 16, 600};

struct Cell {
  std::uint32_t head_dim;
  std::uint32_t group;
  std::uint32_t length;
  std::uint32_t batch;
  ElementType type;
  std::uint32_t window;
  std::uint32_t seed;

  [[nodiscard]] std::string name() const {
    return "head_dim " + std::to_string(head_dim) + " group " + std::to_string(group) + " length " +
           std::to_string(length) + " batch " + std::to_string(batch) + " window " + std::to_string(window) +
           " " + std::string(to_string(type));
  }
  [[nodiscard]] KvFormat format() const {
    return type == ElementType::kF32 ? KvFormat::kFp32 : KvFormat::kBf16;
  }
};

const std::vector<Cell>& matrix() {
  static const std::vector<Cell> cells = [] {
    std::vector<Cell> made;
    const std::size_t all = std::size(kHeadDims) * std::size(kGroups) * std::size(kLengths) *
                            std::size(kBatches) * std::size(kTypes);
    for (std::size_t i = 0; i < all; ++i) {
      std::size_t left = i;
      std::size_t turn = 0;  // one more where any other value is the next
      const auto next = [&](const auto& values) {
        const std::size_t at = left % std::size(values);
        left /= std::size(values);
        turn += at;
        return values[at];
      };
      Cell cell{};
      cell.head_dim = next(kHeadDims);
      cell.group = next(kGroups);
      cell.length = next(kLengths);
      cell.batch = next(kBatches);
      cell.type = next(kTypes);
      cell.window = kWindows[turn % std::size(kWindows)];
      cell.seed = static_cast<std::uint32_t>(i);
      made.push_back(cell);
    }
    return made;
  }();
  return cells;
}

template <class Body>
void for_each_cell(Body&& body) {
  for (const Cell& cell : matrix()) {
    SCOPED_TRACE(cell.name());
    body(cell);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// The first and the last sequence have the cell's length; between them come short ones of every kind.
std::uint32_t length_of(const Cell& cell, std::uint32_t sequence) {
  const bool end = sequence == 0 || sequence + 1 == cell.batch;
  return end ? cell.length : kLengths[sequence % 5];
}

// Short sequences are prefilled whole, long ones decode their last token.
std::vector<SeqShape> sequences_of(const Cell& cell) {
  std::vector<SeqShape> seqs;
  for (std::uint32_t s = 0; s < cell.batch; ++s) {
    const std::uint32_t length = length_of(cell, s);
    seqs.push_back({length, length > 17 ? 1 : length});
  }
  return seqs;
}

TEST(ParityMatrix, PagedAttention) {
  for_each_cell([](const Cell& cell) {
    const AttentionShape shape{.num_q_heads = kKvHeads * cell.group,
                               .num_kv_heads = kKvHeads,
                               .head_dim = cell.head_dim,
                               .type = cell.type,
                               .k_format = cell.format(),
                               .v_format = cell.format(),
                               .window = cell.window};
    const auto seqs = sequences_of(cell);
    std::mt19937 random(cell.seed);
    std::vector<Sequence> sequences;
    for (const SeqShape& s : seqs) sequences.push_back(random_sequence(random, shape, s.context, s.queries));
    const auto out = run_attention(shape, sequences, seqs, {.workspace = cell.seed % 2 == 0}).floats();
    const std::size_t width = std::size_t{shape.num_q_heads} * shape.head_dim;
    std::size_t row = 0;
    for (std::size_t s = 0; s < seqs.size(); ++s) {
      // The middle of a large batch is looked at here and there, every length among it.
      if (s > 2 && s + 3 < seqs.size() && s % 16 != 0) {
        row += seqs[s].queries;
        continue;
      }
      for (std::uint32_t i = 0; i < seqs[s].queries; ++i, ++row) {
        const ModelRow model = model_attention(shape, sequences[s], seqs[s].context - seqs[s].queries + i);
        for (std::size_t d = 0; d < width; ++d) {
          ASSERT_NEAR(out[row * width + d], model.out[d], model.tolerance[d])
              << "sequence " << s << " query " << i;
        }
      }
    }
    ASSERT_EQ(out.size(), row * width);
  });
}

// The next key and value of each sequence, in blocks of 16.
TEST(ParityMatrix, KvWrite) {
  for_each_cell([](const Cell& cell) {
    constexpr std::uint32_t kBlock = 16;
    const std::size_t width = std::size_t{kKvHeads} * cell.head_dim;
    std::mt19937 random(cell.seed);
    const Elements k(cell.type, random_normal(random, cell.batch * width));
    const Elements v(cell.type, random_normal(random, cell.batch * width));
    std::vector<std::int64_t> slots;
    std::uint32_t blocks = 0;
    for (std::uint32_t s = 0; s < cell.batch; ++s) {
      slots.push_back(std::int64_t{blocks} * kBlock + length_of(cell, s));
      blocks += length_of(cell, s) / kBlock + 1;
    }
    const std::uint64_t side = quant::kv_side_bytes(cell.format(), kBlock, kKvHeads, cell.head_dim);
    std::vector<std::byte> k_pool(blocks * side);
    std::vector<std::byte> v_pool(blocks * side);
    run_kernel(test_pool(), kKvWrite,
               KvWriteArgs{.rows = address(&cell.batch),
                           .k = k.address(),
                           .v = v.address(),
                           .slots = address(slots),
                           .k_pool = address(k_pool),
                           .v_pool = address(v_pool),
                           .max_rows = cell.batch,
                           .stride = static_cast<std::uint32_t>(width),
                           .num_kv_heads = kKvHeads,
                           .head_dim = cell.head_dim,
                           .block_size = kBlock,
                           .num_blocks = blocks,
                           .type = cell.type,
                           .k_format = cell.format(),
                           .v_format = cell.format(),
                           .reserved = 0});
    for (const auto& [pool, values] : {std::pair(&k_pool, &k), std::pair(&v_pool, &v)}) {
      std::vector<std::byte> bytes(blocks * side);
      for (std::uint32_t s = 0; s < cell.batch; ++s) {
        for (std::size_t i = 0; i < width; ++i) {
          const std::size_t at =
              static_cast<std::size_t>(slots[s]) / kBlock * side +
              quant::kv_codes_offset(cell.format(), kBlock, cell.head_dim, i / cell.head_dim,
                                     static_cast<std::uint32_t>(slots[s] % kBlock)) +
              i % cell.head_dim * quant::element_bytes(cell.type);
          std::memcpy(bytes.data() + at,
                      values->bytes().data() + (s * width + i) * quant::element_bytes(cell.type),
                      quant::element_bytes(cell.type));
        }
      }
      ASSERT_EQ(*pool, bytes);
    }
  });
}

// Pairs (i, i + head_dim / 2) of every head turned by position * 10000^(-2 i / head_dim).
TEST(ParityMatrix, Rope) {
  for_each_cell([](const Cell& cell) {
    const std::uint32_t half = cell.head_dim / 2;
    std::vector<float> inv_freq(half);
    for (std::uint32_t i = 0; i < half; ++i) {
      inv_freq[i] = static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / half));
    }
    std::vector<std::uint32_t> positions;
    for (std::uint32_t s = 0; s < cell.batch; ++s) positions.push_back(length_of(cell, s));
    std::vector<float> table(std::size_t{cell.batch} * cell.head_dim);
    std::mt19937 random(cell.seed);
    const std::size_t width = std::size_t{cell.group} * cell.head_dim;
    Elements data(cell.type, random_normal(random, cell.batch * width));
    const auto before = data.floats();
    RopeTableArgs make{};
    make.rows = address(&cell.batch);
    make.positions = address(positions);
    make.inv_freq = address(inv_freq);
    make.table = address(table);
    make.max_rows = cell.batch;
    make.half_dims = half;
    make.factor = 1.0F;
    run_kernel(test_pool(), kRopeTable, make);
    run_kernel(test_pool(), kRope,
               RopeArgs{.rows = address(&cell.batch),
                        .table = address(table),
                        .data = data.address(),
                        .max_rows = cell.batch,
                        .stride = static_cast<std::uint32_t>(width),
                        .num_heads = cell.group,
                        .head_dim = cell.head_dim,
                        .rotary_dim = cell.head_dim,
                        .type = cell.type});
    for (std::size_t at = 0; at < before.size(); ++at) {
      const std::size_t i = at % cell.head_dim;
      const double angle = 1.0 * positions[at / width] * double{inv_freq[i % half]};
      const double x = before[at];
      const double y = i < half ? -double{before[at + half]} : double{before[at - half]};
      const double expected = x * std::cos(angle) + y * std::sin(angle);
      // The angle is rounded to FP32 once, by up to 2^-24 of itself.
      const double bound =
          (std::abs(x) + std::abs(y)) * (angle + 4) * 0x1p-24 + rounding_bound(cell.type, expected);
      ASSERT_NEAR(data.get(at), expected, bound) << "row " << at / width << " dim " << i;
    }
  });
}

// Every head by itself, as qk-norm does.
TEST(ParityMatrix, RmsNorm) {
  for_each_cell([](const Cell& cell) {
    std::mt19937 random(cell.seed);
    const std::size_t width = std::size_t{cell.group} * cell.head_dim;
    const Elements in(cell.type, random_normal(random, cell.batch * width, 2.0F));
    const Elements weight(cell.type, random_normal(random, cell.head_dim));
    Elements out(cell.type, cell.batch * width);
    RmsNormArgs args{};
    args.rows = address(&cell.batch);
    args.in = in.address();
    args.weight = weight.address();
    args.out = out.address();
    args.max_rows = cell.batch;
    args.width = cell.head_dim;
    args.in_stride = args.out_stride = static_cast<std::uint32_t>(width);
    args.in_type = args.weight_type = args.out_type = cell.type;
    args.epsilon = 1e-6F;
    args.groups = cell.group;
    run_kernel(test_pool(), kRmsNorm, args);
    for (std::size_t head = 0; head < cell.batch * std::size_t{cell.group}; ++head) {
      double squares = 0;
      for (std::size_t i = 0; i < cell.head_dim; ++i)
        squares += std::pow(double{in.get(head * cell.head_dim + i)}, 2);
      const double inverse = 1 / std::sqrt(squares / cell.head_dim + double{args.epsilon});
      for (std::size_t i = 0; i < cell.head_dim; ++i) {
        const double expected = in.get(head * cell.head_dim + i) * inverse * weight.get(i);
        ASSERT_NEAR(out.get(head * cell.head_dim + i), expected,
                    std::abs(expected) * 32 * 0x1p-24 + rounding_bound(cell.type, expected))
            << "head " << head << " dim " << i;
      }
    }
  });
}

// The projection of all heads to a hidden size of one head's.
TEST(ParityMatrix, Linear) {
  for_each_cell([](const Cell& cell) {
    const LinearCase c{.rows = cell.batch,
                       .in_features = cell.group * cell.head_dim,
                       .out_features = cell.head_dim,
                       .in_type = cell.type,
                       .weight_type = cell.type,
                       .out_type = cell.type,
                       .bias = cell.window == 0,
                       .spare_rows = 1};
    std::mt19937 random(cell.seed);
    const LinearData data = random_linear(random, c);
    const Elements out = run_linear(c, data);
    for (std::uint32_t row = 0; row <= c.rows; ++row) {
      // The middle of a large batch is looked at here and there.
      if (row > 8 && row < c.rows - 8 && row % 16 != 0) continue;
      for (std::uint32_t o = 0; o < c.out_features; ++o) {
        const float value = out.get(std::size_t{row} * c.out_features + o);
        if (row == c.rows) {
          ASSERT_EQ(value, kUntouched) << "output " << o << " of a row that does not exist";
          continue;
        }
        const LinearModel model = model_linear(c, data, row, o);
        ASSERT_NEAR(value, model.value, model.tolerance) << "row " << row << " output " << o;
      }
    }
  });
}

}  // namespace
}  // namespace metrale::kernels
