// SPDX-License-Identifier: Apache-2.0
// linear on the shapes of SmolLM2-135M (30 layers and the logits): decode against the memory's read rate,
// prefill against oneDNN's rate on the same products. Everything a share or ratio compares is measured in the
// same run, alternating.
// bench-deps: kernels DNNL::dnnl OpenMP::OpenMP_CXX
#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <omp.h>
#include <random>
#include <string>

#include <dnnl.hpp>
#include <fmt/format.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/cpu_features.h>
#include <metrale/base/thread_pool.h>
#include <metrale/kernels/cpu_kernels.h>
#include <metrale/kernels/linear.h>
#include <metrale/quant/float_convert.h>

#include "support/read_rate.h"
#include "support/report.h"

namespace metrale::bench {
namespace {

using quant::ElementType;

constexpr unsigned kThreads = 2;
constexpr unsigned kLayers = 30;
constexpr std::uint32_t kPrefillRows = 512;

struct Shape {
  std::uint32_t in_features;
  std::uint32_t out_features;
  unsigned per_layer;  // 0: once a model

  [[nodiscard]] std::size_t elems() const { return std::size_t{in_features} * out_features; }
  [[nodiscard]] std::string name() const { return fmt::format("{}->{}", in_features, out_features); }
};
constexpr Shape kShapes[] = {{576, 960, 1}, {576, 576, 1}, {576, 3072, 1}, {1536, 576, 1}, {576, 49152, 0}};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The pool as a backend uses it: kernel bodies run on a worker, the other worker helps.
class Machine {
 public:
  Machine() : pool_({.threads = kThreads, .cpus = usable_cpus()}) {
    kernels::register_cpu_kernels(table_);
    linear_ = table_.find(kernels::kLinear.module, kernels::kLinear.function)->body;
  }

  void on_worker(const std::function<void()>& work) {
    std::packaged_task<void()> task(work);
    auto done = task.get_future();
    pool_.post([&task] { task(); });
    done.get();
  }
  void linear(const kernels::LinearArgs& args) { linear_(pool_, &args); }
  [[nodiscard]] ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
  gpu::CpuKernelTable table_;
  gpu::CpuKernelBody linear_ = nullptr;
};

// ---- data

// Random BF16 numbers of about one in size, from a fixed seed, without the cost of a generator per number.
void fill_bf16(std::span<std::byte> memory) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> pattern(65521);
  for (auto& value : pattern) value = quant::float_to_bf16(normal(random) * 0.125F);
  for (std::size_t at = 0; at < memory.size(); at += pattern.size() * 2) {
    std::memcpy(memory.data() + at, pattern.data(), std::min(pattern.size() * 2, memory.size() - at));
  }
}

std::uint64_t address(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at);
}

struct Product {
  const Shape* shape;
  const std::byte* weight;
};

// The model's products in the order of a step.
std::vector<Product> model_products(std::span<const std::byte> memory) {
  std::vector<Product> products;
  const std::byte* next = memory.data();
  const auto add = [&](const Shape& shape) {
    products.push_back({&shape, next});
    next += shape.elems() * 2;
  };
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    for (const Shape& shape : kShapes) {
      for (unsigned i = 0; i < shape.per_layer; ++i) add(shape);
    }
  }
  for (const Shape& shape : kShapes) {
    if (shape.per_layer == 0) add(shape);
  }
  return products;
}

// ---- decode

struct DecodeCase {
  std::string name;
  std::uint32_t rows;
  ElementType type;                                     // of the activations; weights are BF16
  std::map<const Shape*, std::vector<double>> seconds;  // a pass, all products of the shape
  std::vector<double> total;
  std::vector<double> reads;  // bytes a second around each pass, in 1e9
};

void decode_pass(Machine& machine, DecodeCase& decode, std::span<const Product> products, const std::byte* in,
                 std::byte* out) {
  std::map<const Shape*, double> seconds;
  for (const Shape& shape : kShapes) seconds[&shape] = 0;
  machine.on_worker([&] {
    for (const Product& product : products) {
      const Shape& shape = *product.shape;
      const auto start = Clock::now();
      machine.linear({.rows = address(&decode.rows),
                      .in = address(in),
                      .weight = address(product.weight),
                      .bias = 0,
                      .out = address(out),
                      .max_rows = decode.rows,
                      .in_features = shape.in_features,
                      .out_features = shape.out_features,
                      .in_stride = shape.in_features,
                      .out_stride = shape.out_features,
                      .in_type = decode.type,
                      .weight_type = ElementType::kBf16,
                      .out_type = ElementType::kF32});
      seconds[&shape] += seconds_since(start);
    }
  });
  double total = 0;
  for (const auto& [shape, time] : seconds) {
    decode.seconds[shape].push_back(time);
    total += time;
  }
  decode.total.push_back(total);
}

void bench_decode(Machine& machine, Report& report, unsigned runs, ReadRate& reading) {
  const auto products = model_products(reading.memory());
  AlignedBuffer in(std::size_t{16} * 1536 * 4, 64);
  AlignedBuffer out(std::size_t{16} * 49152 * 4, 64);
  fill_bf16(in.span());
  std::vector<DecodeCase> cases;
  cases.push_back({"decode bf16", 1, ElementType::kBf16, {}, {}, {}});
  cases.push_back({"decode fp32 x bf16", 1, ElementType::kF32, {}, {}, {}});
  cases.push_back({"decode bf16, 4 rows", 4, ElementType::kBf16, {}, {}, {}});
  cases.push_back({"decode bf16, 8 rows", 8, ElementType::kBf16, {}, {}, {}});
  cases.push_back({"decode bf16, 16 rows", 16, ElementType::kBf16, {}, {}, {}});
  // The machine's read rate changes from second to second: every pass is compared with the reads before and
  // after it.
  std::vector<double> reads{reading.measure()};
  for (unsigned run = 0; run < runs; ++run) {
    for (DecodeCase& decode : cases) {
      decode_pass(machine, decode, products, in.data(), out.data());
      reads.push_back(reading.measure());
      decode.reads.push_back((reads[reads.size() - 2] + reads.back()) / 2);
    }
  }
  const double read_rate = median(reads);
  report.add({.name = "read of 1.25 GiB",
              .metric = "rate",
              .value = read_rate,
              .unit = "GB/s",
              .bytes_moved = reading.memory().size(),
              .share_of_limit = {},
              .limit = {}});
  const std::string limit =
      fmt::format("the read rate of {} threads around each pass (median of the ratios; read at {:.1f} GB/s)",
                  kThreads, read_rate);
  const auto add = [&](const std::string& name, std::size_t bytes, const DecodeCase& decode,
                       const std::vector<double>& seconds) {
    std::vector<double> shares;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      shares.push_back(static_cast<double>(bytes) / seconds[i] / 1e9 / decode.reads[i]);
    }
    report.add({.name = name,
                .metric = "weights read",
                .value = static_cast<double>(bytes) / median(seconds) / 1e9,
                .unit = "GB/s",
                .bytes_moved = bytes,
                .share_of_limit = median(shares),
                .limit = limit});
  };
  for (DecodeCase& decode : cases) {
    std::size_t all = 0;
    for (const Shape& shape : kShapes) {
      const std::size_t bytes = shape.elems() * 2 * std::max(1U, shape.per_layer * kLayers);
      all += bytes;
      add(fmt::format("{} {}", decode.name, shape.name()), bytes, decode, decode.seconds[&shape]);
    }
    add(fmt::format("{} whole model", decode.name), all, decode, decode.total);
  }
}

// ---- prefill

// oneDNN on one product. Its threads are given up between runs: waiting ones would take our cores.
class Peer {
 public:
  enum class Kind { kMatmulPlain, kMatmulOwn, kInnerPlain, kInnerOwn };
  static constexpr std::string_view kNames[] = {"matmul, plain weights", "matmul, own weight layout",
                                                "inner product, plain weights",
                                                "inner product, own weight layout"};

  Peer(Kind kind, const Shape& shape, dnnl::memory::data_type type, std::byte* in, std::byte* weight,
       std::byte* out)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    using Tag = memory::format_tag;
    const memory::dim rows = kPrefillRows;
    const memory::dim k = shape.in_features;
    const memory::dim n = shape.out_features;
    const bool own = kind == Kind::kMatmulOwn || kind == Kind::kInnerOwn;
    const memory::desc in_desc({rows, k}, type, Tag::ab);
    const memory::desc out_desc({rows, n}, memory::data_type::f32, Tag::ab);
    if (kind == Kind::kMatmulPlain || kind == Kind::kMatmulOwn) {
      const memory::desc plain({k, n}, type, Tag::ba);
      const dnnl::matmul::primitive_desc primitive(
          {in_desc, own ? memory::desc({k, n}, type, Tag::any) : plain, out_desc}, engine_);
      primitive_ = dnnl::matmul(primitive);
      set_weight(plain, primitive.weights_desc(), weight);
    } else {
      const memory::desc plain({n, k}, type, Tag::ab);
      const dnnl::inner_product_forward::primitive_desc primitive(
          {dnnl::prop_kind::forward_inference, in_desc, own ? memory::desc({n, k}, type, Tag::any) : plain,
           out_desc},
          engine_);
      primitive_ = dnnl::inner_product_forward(primitive);
      set_weight(plain, primitive.weights_desc(), weight);
    }
    arguments_[DNNL_ARG_SRC] = memory(in_desc, engine_, in);
    arguments_[DNNL_ARG_DST] = memory(out_desc, engine_, out);
  }

  void run() {
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  void set_weight(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted, std::byte* weight) {
    dnnl::memory from(plain, engine_, weight);
    dnnl::memory to = plain == wanted ? from : dnnl::memory(wanted, engine_);
    if (plain != wanted) dnnl::reorder(from, to).execute(stream_, from, to);
    stream_.wait();
    arguments_[DNNL_ARG_WEIGHTS] = to;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// The median of `repeats` calls, in seconds, after one that is not counted.
template <class Work>
double repeat_seconds(unsigned repeats, Work&& work) {
  return median_seconds(repeats, work);
}

void bench_prefill_shape(Machine& machine, Report& report, unsigned runs, const Shape& shape,
                         ElementType type, std::span<std::byte> memory) {
  const std::size_t bytes = element_bytes(type);
  std::byte* const weight = memory.data();
  std::byte* const in = weight + shape.elems() * bytes;
  std::byte* const out = in + std::size_t{kPrefillRows} * shape.in_features * bytes;
  const std::uint32_t rows = kPrefillRows;
  const kernels::LinearArgs args{.rows = address(&rows),
                                 .in = address(in),
                                 .weight = address(weight),
                                 .bias = 0,
                                 .out = address(out),
                                 .max_rows = rows,
                                 .in_features = shape.in_features,
                                 .out_features = shape.out_features,
                                 .in_stride = shape.in_features,
                                 .out_stride = shape.out_features,
                                 .in_type = type,
                                 .weight_type = type,
                                 .out_type = ElementType::kF32};
  const auto dnnl_type =
      type == ElementType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  std::vector<Peer> peers;
  for (const auto kind :
       {Peer::Kind::kMatmulPlain, Peer::Kind::kMatmulOwn, Peer::Kind::kInnerPlain, Peer::Kind::kInnerOwn}) {
    peers.emplace_back(kind, shape, dnnl_type, in, weight, out);
  }
  const unsigned repeats = shape.elems() > 10'000'000 ? 1 : 7;
  std::vector<double> ours;
  std::vector<std::vector<double>> theirs(peers.size());
  for (unsigned run = 0; run < runs; ++run) {
    machine.on_worker([&] { ours.push_back(repeat_seconds(repeats, [&] { machine.linear(args); })); });
    for (std::size_t i = 0; i < peers.size(); ++i) {
      theirs[i].push_back(repeat_seconds(repeats, [&] { peers[i].run(); }));
    }
    omp_pause_resource_all(omp_pause_soft);
  }
  const double flop = 2.0 * kPrefillRows * static_cast<double>(shape.elems());
  double best = 0;
  std::string best_name;
  const std::string name = fmt::format("prefill {} {}", to_string(type), shape.name());
  const std::uint64_t moved = (shape.elems() + std::size_t{kPrefillRows} * shape.in_features) * bytes +
                              std::size_t{kPrefillRows} * shape.out_features * 4;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const double rate = flop / median(theirs[i]) / 1e9;
    report.add({.name = fmt::format("{}, oneDNN {}", name, Peer::kNames[i]),
                .metric = "rate",
                .value = rate,
                .unit = "GFLOP/s",
                .bytes_moved = moved,
                .share_of_limit = {},
                .limit = {}});
    if (rate > best) best = rate, best_name = Peer::kNames[i];
  }
  const double rate = flop / median(ours) / 1e9;
  report.add({.name = name,
              .metric = "rate",
              .value = rate,
              .unit = "GFLOP/s",
              .bytes_moved = moved,
              .share_of_limit = rate / best,
              .limit = fmt::format("oneDNN's best ({}), {:.0f} GFLOP/s", best_name, best)});
}

int run(int argc, char** argv) {
  Report report(
      "linear",
      fmt::format(
          "SmolLM2-135M shapes as the engine runs them, 30 layers with weights of their own, {} threads "
          "on a CPU each, {} instructions; medians, peers alternating",
          kThreads, to_string(cpu_isa())),
      argc, argv);
  const auto& words = report.arguments();
  const auto wanted = [&](std::string_view what) {
    return words.empty() || std::find(words.begin(), words.end(), what) != words.end();
  };
  omp_set_num_threads(kThreads);
  Machine machine;
  ReadRate reading(machine.pool());
  fill_bf16(reading.memory());
  if (wanted("decode")) bench_decode(machine, report, 11, reading);
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    if (!wanted("prefill") && !wanted(to_string(type))) continue;
    for (const Shape& shape : kShapes) bench_prefill_shape(machine, report, 7, shape, type, reading.memory());
  }
  report.write();
  return 0;
}

}  // namespace
}  // namespace metrale::bench

int main(int argc, char** argv) {
  return metrale::bench::run(argc, argv);
}
