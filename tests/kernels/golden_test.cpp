// SPDX-License-Identifier: Apache-2.0
// The vectors of scripts/golden/kernels_golden.py; tests/golden/kernels/README.md says what they cover.
#include "support/golden.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/kernels/activation.h>
#include <metrale/kernels/embedding.h>
#include <metrale/kernels/kv_shift.h>
#include <metrale/kernels/kv_write.h>
#include <metrale/kernels/linear.h>
#include <metrale/kernels/logits.h>
#include <metrale/kernels/norm.h>
#include <metrale/kernels/rope.h>

#include "kernels/support/mla_case.h"

namespace metrale::kernels {
namespace {

using nlohmann::json;

quant::ElementType type_of(const json& name) {
  for (const quant::ElementType type : kAllTypes) {
    if (quant::to_string(type) == name.get<std::string>()) return type;
  }
  throw std::logic_error("unknown type in a golden file");
}

quant::KvFormat format_of(const json& name) {
  return quant::parse_kv_format(name.get<std::string>()).value();
}

// One case of a golden file.
class Case {
 public:
  Case(const test::GoldenFile& file, const json& facts) : file_(file), facts_(facts) {}

  [[nodiscard]] std::string name() const { return facts_.at("name").get<std::string>(); }
  [[nodiscard]] const json& at(const char* key) const { return facts_.at(key); }
  [[nodiscard]] std::uint32_t u32(const char* key) const { return facts_.at(key).get<std::uint32_t>(); }
  template <class T>
  [[nodiscard]] std::vector<T> array(const std::string& array) const {
    return file_.array<T>(name() + "." + array).values;
  }
  [[nodiscard]] Elements elements(const std::string& name_of, quant::ElementType type) const {
    return Elements(type, array<float>(name_of));
  }

  void expect_out(const std::vector<float>& got, const char* expected_name = "out") const {
    const auto expected = array<float>(expected_name);
    const double relative = facts_.value("relative", 0.0);
    const double absolute = facts_.value("absolute", 0.0);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], relative * std::abs(double{expected[i]}) + absolute)
          << name() << " " << expected_name << " element " << i;
    }
  }

 private:
  const test::GoldenFile& file_;
  const json& facts_;
};

// Runs every case of a file, or those of one kernel, and expects at least one.
template <class Body>
void for_cases(const char* family, const char* kernel, const Body& body) {
  const test::GoldenFile file(std::string("kernels/") + family);
  std::size_t cases = 0;
  for (const json& facts : file.facts().at("cases")) {
    if (kernel != nullptr && facts.at("kernel") != kernel) continue;
    ++cases;
    body(Case(file, facts));
  }
  EXPECT_GE(cases, 1U);
}

TEST(KernelGolden, Embedding) {
  for_cases("embedding", nullptr, [](const Case& c) {
    const auto ids = c.array<std::uint32_t>("ids");
    const Elements table = c.elements("table", type_of(c.at("table_type")));
    const auto rows = static_cast<std::uint32_t>(ids.size());
    Elements out(type_of(c.at("out_type")), std::size_t{rows} * c.u32("width"));
    EmbeddingArgs args{};
    args.rows = address(&rows);
    args.token_ids = address(ids);
    args.table = table.address();
    args.out = out.address();
    args.max_rows = rows;
    args.width = c.u32("width");
    args.vocab = c.u32("vocab");
    args.table_type = table.type();
    args.out_type = out.type();
    run_kernel(test_pool(), kEmbedding, args);
    c.expect_out(out.floats());
  });
}

TEST(KernelGolden, RmsNorm) {
  for_cases("norm", nullptr, [](const Case& c) {
    const std::uint32_t rows = c.u32("rows");
    const quant::ElementType type = type_of(c.at("type"));
    const Elements x = c.elements("x", type);
    const Elements weight = c.elements("weight", type);
    Elements out(type, x.size());
    RmsNormArgs args{};
    args.rows = address(&rows);
    args.in = x.address();
    args.weight = weight.address();
    args.out = out.address();
    args.max_rows = rows;
    args.width = args.in_stride = args.out_stride = c.u32("width");
    args.in_type = args.weight_type = args.out_type = type;
    args.epsilon = c.at("epsilon").get<float>();
    run_kernel(test_pool(), kRmsNorm, args);
    c.expect_out(out.floats());
  });
}

TEST(KernelGolden, RopeTableAndRope) {
  for_cases("rope", nullptr, [](const Case& c) {
    const std::uint32_t rows = c.u32("rows");
    const auto positions = c.array<std::uint32_t>("positions");
    const auto inv_freq = c.array<float>("inv_freq");
    std::vector<float> table(std::size_t{rows} * 2 * inv_freq.size());
    RopeTableArgs table_args{};
    table_args.rows = address(&rows);
    table_args.positions = address(positions);
    table_args.inv_freq = address(inv_freq);
    table_args.table = address(table);
    table_args.max_rows = rows;
    table_args.half_dims = c.u32("half_dims");
    table_args.factor = c.at("factor").get<float>();
    run_kernel(test_pool(), kRopeTable, table_args);
    c.expect_out(table, "table");

    Elements data = c.elements("x", quant::ElementType::kF32);
    RopeArgs args{};
    args.rows = address(&rows);
    args.table = address(table);
    args.data = data.address();
    args.max_rows = rows;
    args.stride = c.u32("stride");
    args.num_heads = c.u32("heads");
    args.head_dim = c.u32("head_dim");
    args.rotary_dim = 2 * c.u32("half_dims");
    args.type = data.type();
    run_kernel(test_pool(), kRope, args);
    c.expect_out(data.floats());
  });
}

TEST(KernelGolden, SiluMul) {
  for_cases("activation", "silu_mul", [](const Case& c) {
    const std::uint32_t rows = c.u32("rows");
    const quant::ElementType type = type_of(c.at("type"));
    const Elements gate = c.elements("gate", type);
    const Elements up = c.elements("up", type);
    Elements out(type, gate.size());
    GatedMulArgs args{};
    args.rows = address(&rows);
    args.gate = gate.address();
    args.up = up.address();
    args.out = out.address();
    args.max_rows = rows;
    args.width = args.in_stride = args.out_stride = c.u32("width");
    args.type = type;
    run_kernel(test_pool(), kSiluMul, args);
    c.expect_out(out.floats());
  });
}

TEST(KernelGolden, ResidualAdd) {
  for_cases("activation", "residual_add", [](const Case& c) {
    const std::uint32_t rows = c.u32("rows");
    const Elements x = c.elements("x", type_of(c.at("type")));
    auto accum = c.array<float>("accum");
    ResidualAddArgs args{};
    args.rows = address(&rows);
    args.in = x.address();
    args.accum = address(accum);
    args.max_rows = rows;
    args.width = c.u32("width");
    args.in_type = x.type();
    run_kernel(test_pool(), kResidualAdd, args);
    c.expect_out(accum);
  });
}

TEST(KernelGolden, KvWrite) {
  for_cases("kv_write", nullptr, [](const Case& c) {
    const auto slots = c.at("slots").get<std::vector<std::int64_t>>();
    const auto rows = static_cast<std::uint32_t>(slots.size());
    const auto k = c.array<float>("k");
    const auto v = c.array<float>("v");
    const auto k_expected = c.array<std::uint16_t>("k_pool");
    const auto v_expected = c.array<std::uint32_t>("v_pool");
    std::vector<std::uint16_t> k_pool(k_expected.size(), 0xEEEE);
    std::vector<std::uint32_t> v_pool(v_expected.size(), 0xEEEEEEEE);
    KvWriteArgs args{};
    args.rows = address(&rows);
    args.k = address(k);
    args.v = address(v);
    args.slots = address(slots);
    args.k_pool = address(k_pool);
    args.v_pool = address(v_pool);
    args.max_rows = rows;
    args.num_kv_heads = c.u32("heads");
    args.head_dim = c.u32("head_dim");
    args.stride = args.num_kv_heads * args.head_dim;
    args.block_size = c.u32("block_size");
    args.num_blocks = c.u32("num_blocks");
    args.k_format = quant::KvFormat::kBf16;
    args.v_format = quant::KvFormat::kFp32;
    run_kernel(test_pool(), kKvWrite, args);
    EXPECT_EQ(k_pool, k_expected);
    EXPECT_EQ(v_pool, v_expected);
  });
}

TEST(KernelGolden, KvShift) {
  for_cases("kv_shift", nullptr, [](const Case& c) {
    const auto slots = c.at("slots").get<std::vector<std::int64_t>>();
    const auto deltas = c.at("deltas").get<std::vector<std::int32_t>>();
    const auto inv_freq = c.array<float>("inv_freq");
    const auto rows = static_cast<std::uint32_t>(slots.size());
    auto pool = c.array<float>("pool");
    KvShiftArgs args{};
    args.rows = address(&rows);
    args.slots = address(slots);
    args.deltas = address(deltas);
    args.inv_freq = address(inv_freq);
    args.k_pool = address(pool);
    args.max_rows = rows;
    args.num_kv_heads = c.u32("heads");
    args.head_dim = c.u32("head_dim");
    args.rotary_dim = c.u32("rotary_dim");
    args.block_size = c.u32("block_size");
    args.num_blocks = c.u32("num_blocks");
    args.k_format = quant::KvFormat::kFp32;
    run_kernel(test_pool(), kKvShift, args);
    c.expect_out(pool);
  });
}

// Cuts the next `count` values off the front of `from`.
std::vector<float> take(std::span<const float>& from, std::size_t count) {
  const std::vector<float> taken(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count));
  from = from.subspan(count);
  return taken;
}

TEST(KernelGolden, PagedAttention) {
  for_cases("attention", nullptr, [](const Case& c) {
    const AttentionShape shape{.num_q_heads = c.u32("q_heads"),
                               .num_kv_heads = c.u32("kv_heads"),
                               .head_dim = c.u32("head_dim"),
                               .k_format = format_of(c.at("k_format")),
                               .v_format = format_of(c.at("v_format")),
                               .window = c.u32("window")};
    const auto q_values = c.array<float>("q");
    const auto k_values = c.array<float>("k");
    const auto v_values = c.array<float>("v");
    std::span<const float> q(q_values);
    std::span<const float> k(k_values);
    std::span<const float> v(v_values);
    const std::size_t q_width = std::size_t{shape.num_q_heads} * shape.head_dim;
    const std::size_t kv_width = std::size_t{shape.num_kv_heads} * shape.head_dim;
    std::vector<SeqShape> seqs;
    std::vector<Sequence> sequences;
    for (std::size_t s = 0; s < c.at("contexts").size(); ++s) {
      const SeqShape seq{c.at("contexts")[s].get<std::uint32_t>(), c.at("queries")[s].get<std::uint32_t>()};
      // The file has the queries of the step only, at the end of the context.
      std::vector<float> all_q(std::size_t{seq.context - seq.queries} * q_width);
      const auto own_q = take(q, seq.queries * q_width);
      all_q.insert(all_q.end(), own_q.begin(), own_q.end());
      sequences.push_back({all_q, take(k, seq.context * kv_width), take(v, seq.context * kv_width)});
      seqs.push_back(seq);
    }
    c.expect_out(run_attention(shape, sequences, seqs).floats());
    c.expect_out(run_attention(shape, sequences, seqs, {.block_size = 64, .workspace = true}).floats());
  });
}

TEST(KernelGolden, MlaAttention) {
  for_cases("mla_attention", nullptr, [](const Case& c) {
    const MlaShape shape{.num_heads = c.u32("heads"),
                         .latent_dim = c.u32("latent_dim"),
                         .rope_dim = c.u32("rope_dim"),
                         .latent_format = format_of(c.at("latent_format")),
                         .rope_format = format_of(c.at("rope_format")),
                         .window = c.u32("window")};
    std::vector<SeqShape> seqs;
    for (std::size_t s = 0; s < c.at("contexts").size(); ++s) {
      seqs.push_back({c.at("contexts")[s].get<std::uint32_t>(), c.at("queries")[s].get<std::uint32_t>()});
    }
    const auto part = [&](const char* q_name, const char* stored_name, std::size_t dim) {
      const auto q_values = c.array<float>(q_name);
      const auto stored_values = c.array<float>(stored_name);
      std::span<const float> q(q_values);
      std::span<const float> stored(stored_values);
      std::vector<Sequence> sequences;
      for (const SeqShape& seq : seqs) {
        std::vector<float> all_q(std::size_t{seq.context - seq.queries} * shape.num_heads * dim);
        const auto own_q = take(q, std::size_t{seq.queries} * shape.num_heads * dim);
        all_q.insert(all_q.end(), own_q.begin(), own_q.end());
        const auto vectors = take(stored, seq.context * dim);
        sequences.push_back({all_q, vectors, vectors});
      }
      return sequences;
    };
    const MlaSequences sequences{part("q_latent", "latent", shape.latent_dim),
                                 part("q_rope", "rope", shape.rope_dim)};
    c.expect_out(run_mla(shape, sequences, seqs).floats());
    c.expect_out(run_mla(shape, sequences, seqs, {.block_size = 64, .workspace = true}).floats());
  });
}

TEST(KernelGolden, GatherRows) {
  for_cases("logits", "gather_rows", [](const Case& c) {
    const Elements x = c.elements("x", quant::ElementType::kF32);
    const auto ids = c.array<std::uint32_t>("ids");
    const auto rows = static_cast<std::uint32_t>(ids.size());
    Elements out(x.type(), std::size_t{rows} * c.u32("width"));
    GatherRowsArgs args{};
    args.rows = address(&rows);
    args.row_ids = address(ids);
    args.in = x.address();
    args.out = out.address();
    args.max_rows = rows;
    args.width = c.u32("width");
    args.in_rows = static_cast<std::uint32_t>(x.size() / args.width);
    args.type = x.type();
    run_kernel(test_pool(), kGatherRows, args);
    c.expect_out(out.floats());
  });
}

TEST(KernelGolden, Argmax) {
  for_cases("logits", "argmax", [](const Case& c) {
    const auto x = c.array<float>("x");
    const auto expected = c.array<std::uint32_t>("tokens");
    const auto rows = static_cast<std::uint32_t>(expected.size());
    std::vector<std::uint32_t> tokens(rows);
    ArgmaxArgs args{};
    args.rows = address(&rows);
    args.logits = address(x);
    args.tokens = address(tokens);
    args.max_rows = rows;
    args.vocab = c.u32("vocab");
    run_kernel(test_pool(), kArgmax, args);
    EXPECT_EQ(tokens, expected);
  });
}

TEST(KernelGolden, Linear) {
  for_cases("linear", nullptr, [](const Case& c) {
    const std::uint32_t rows = c.u32("rows");
    const auto x = c.array<float>("x");
    const Elements weight = c.elements("weight", type_of(c.at("weight_type")));
    const Elements bias = c.elements("bias", weight.type());
    std::vector<float> out(std::size_t{rows} * c.u32("out_features"));
    LinearArgs args{};
    args.rows = address(&rows);
    args.in = address(x);
    args.weight = weight.address();
    args.bias = bias.address();
    args.out = address(out);
    args.max_rows = rows;
    args.in_features = args.in_stride = c.u32("in_features");
    args.out_features = args.out_stride = c.u32("out_features");
    args.weight_type = weight.type();
    run_kernel(test_pool(), kLinear, args);
    c.expect_out(out);
  });
}

}  // namespace
}  // namespace metrale::kernels
