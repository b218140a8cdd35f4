// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/checked.h>
#include <metrale/base/cpu_features.h>
#include <metrale/base/error.h>
#include <metrale/kernels/linear.h>

#include "kernels/host_args.h"
#include "kernels/linear/plan.h"
#include "kernels/register.h"

namespace metrale::kernels {
namespace {

using linear::Job;
using linear::Kernels;
using quant::ElementType;

constexpr std::string_view kName = "linear::linear";
constexpr std::size_t kRowBlock = 512;                          // rows that share one packing of the weights
constexpr std::size_t kMinSplitRows = 128;                      // fewer would spend their time packing
constexpr std::size_t kRowScratchBytes = std::size_t{4} << 20;  // of activations converted at a time
constexpr std::size_t kFewRowsChunkBytes = std::size_t{1} << 20;

// Memory of one thread, kept for the next call.
class Scratch {
 public:
  template <class T>
  T* reserve(std::size_t count) {
    if (buffer_.size_bytes() < count * sizeof(T)) buffer_ = AlignedBuffer(count * sizeof(T), 64);
    return reinterpret_cast<T*>(buffer_.data());
  }

 private:
  AlignedBuffer buffer_;
};

void check(const LinearArgs& args) {
  for (const ElementType type : {args.in_type, args.weight_type, args.out_type}) check_type(kName, type);
  if (args.in_features == 0 || args.in_stride < args.in_features || args.out_stride < args.out_features) {
    throw InvalidArgument(fmt::format(
        "{}: in_features {} (stride {}), out_features {} (stride {}): in_features must be at least 1 and a "
        "stride at least its features",
        kName, args.in_features, args.in_stride, args.out_features, args.out_stride));
  }
}

const Kernels& choose(const LinearArgs& args, bool pairs) {
  if (pairs) return linear::avx512_bf16_pair_kernels();
  const auto& set = cpu_isa() == CpuIsa::kAvx2 ? linear::avx2_kernels() : linear::avx512_kernels();
  switch (args.weight_type) {
    case ElementType::kF32:
      return set.f32;
    case ElementType::kBf16:
      return set.bf16;
    case ElementType::kF16:
      return set.f16;
  }
  return set.f32;
}

// One launch: the activations as steps, and the loops over rows and outputs.
class Launch {
 public:
  Launch(ThreadPool& pool, const LinearArgs& args)
      : pool_(pool),
        args_(args),
        pairs_(cpu_isa() == CpuIsa::kAvx512Bf16 && args.in_type == ElementType::kBf16 &&
               args.weight_type == ElementType::kBf16),
        kernels_(choose(args, pairs_)) {
    const std::size_t in_features = args.in_features;
    const std::size_t even = round_up(in_features, std::size_t{2});
    job_.steps = pairs_ ? even / 2 : args.weight_type == ElementType::kF32 ? in_features : even;
    job_.weight = host_ptr<const std::byte>(args.weight);
    job_.weight_row_bytes = in_features * element_bytes(args.weight_type);
    job_.out_features = args.out_features;
    job_.bias = host_ptr<const std::byte>(args.bias);
    job_.out_row_bytes = std::size_t{args.out_stride} * element_bytes(args.out_type);
    job_.out_type = args.out_type;
    in_row_bytes_ = std::size_t{args.in_stride} * element_bytes(args.in_type);
    // A row can be read where it lies if it is made of whole steps.
    in_place_ = (pairs_ || args.in_type == ElementType::kF32) &&
                in_features * element_bytes(args.in_type) == job_.steps * 4 && args.in % 4 == 0 &&
                in_row_bytes_ % 4 == 0;
  }

  void run(std::size_t rows) {
    const std::size_t fits = std::max(kernels_.few_rows_max, kRowScratchBytes / (job_.steps * 4));
    const std::size_t block = in_place_ ? kRowBlock : std::min(kRowBlock, fits);
    for (std::size_t row = 0; row < rows; row += block) {
      job_.rows = std::min(block, rows - row);
      job_.out = host_ptr<std::byte>(args_.out) + row * job_.out_row_bytes;
      take_rows(host_ptr<const std::byte>(args_.in) + row * in_row_bytes_);
      if (job_.rows <= kernels_.few_rows_max) {
        run_few_rows();
      } else {
        run_many_rows();
      }
    }
  }

 private:
  void take_rows(const std::byte* in) {
    if (in_place_) {
      job_.x = reinterpret_cast<const std::uint32_t*>(in);
      job_.x_stride = in_row_bytes_ / 4;
      return;
    }
    static thread_local Scratch scratch;
    auto* const x = scratch.reserve<std::uint32_t>(job_.rows * job_.steps);
    pool_.parallel_for(job_.rows, 32, [&](std::size_t begin, std::size_t end) {
      for (std::size_t row = begin; row < end; ++row)
        take_row(in + row * in_row_bytes_, x + row * job_.steps);
    });
    job_.x = x;
    job_.x_stride = job_.steps;
  }

  void take_row(const std::byte* from, std::uint32_t* to) const {
    to[job_.steps - 1] = 0;  // the half that an odd width leaves
    if (pairs_) {
      std::memcpy(to, from, std::size_t{args_.in_features} * 2);
    } else {
      linear::widen_row(args_.in_type, from, args_.in_features, reinterpret_cast<float*>(to));
    }
  }

  void run_few_rows() {
    const std::size_t groups = ceil_div(job_.out_features, kernels_.lanes);
    const std::size_t shared = ceil_div(groups, std::size_t{pool_.size()});
    const std::size_t cap =
        std::max<std::size_t>(1, kFewRowsChunkBytes / (kernels_.lanes * job_.weight_row_bytes));
    // Long stretches: where short ones alternate, every thread's prefetcher runs on into what another one
    // reads.
    pool_.parallel_for(groups, std::min(shared, cap), [&](std::size_t begin, std::size_t end) {
      kernels_.few_rows(job_, begin * kernels_.lanes, std::min(end * kernels_.lanes, job_.out_features));
    });
  }

  void run_many_rows() {
    const std::size_t panel_outs = 2 * kernels_.lanes;
    const std::size_t panels = ceil_div(job_.out_features, panel_outs);
    const std::size_t wanted = ceil_div(std::size_t{pool_.size()} * 4, panels);
    const std::size_t splits = std::clamp<std::size_t>(job_.rows / kMinSplitRows, 1, wanted);
    const std::size_t split_rows = ceil_div(job_.rows, splits);
    pool_.parallel_for(panels * splits, 1, [&](std::size_t begin, std::size_t) {
      static thread_local Scratch panel;
      static thread_local Scratch sums;
      const std::size_t row = begin % splits * split_rows;
      kernels_.many_rows(job_, begin / splits * panel_outs, row, std::min(row + split_rows, job_.rows),
                         panel.reserve<float>(linear::kPanelSteps * panel_outs),
                         sums.reserve<float>(split_rows * panel_outs));
    });
  }

  ThreadPool& pool_;
  const LinearArgs& args_;
  bool pairs_;
  const Kernels& kernels_;
  Job job_{};
  std::size_t in_row_bytes_ = 0;
  bool in_place_ = false;
};

void linear_body(ThreadPool& pool, const LinearArgs& args) {
  check(args);
  const std::uint32_t rows = read_rows(kName, args.rows, args.max_rows);
  if (rows == 0 || args.out_features == 0) return;
  Launch(pool, args).run(rows);
}

}  // namespace

void register_linear(gpu::CpuKernelTable& table) {
  table.add<linear_body>(kLinear);
}

}  // namespace metrale::kernels
