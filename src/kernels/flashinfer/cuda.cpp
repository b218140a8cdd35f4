// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/flashinfer.h>

#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"
#include "kernels/flashinfer/division.h"

namespace metrale::kernels {
namespace {

using namespace flashinfer_decode;

void check(bool served, const std::string& what) {
  if (!served) throw Unsupported("flashinfer::paged_decode", what);
}

// Only what does not change from step to step; the device checks the rest.
void check(const AttentionArgs& a, const Division& d) {
  check(a.type == quant::ElementType::kBf16 && a.k_format == quant::KvFormat::kBf16 &&
            a.v_format == quant::KvFormat::kBf16,
        fmt::format("queries in {} over a cache in {} and {}: only bf16", to_string(a.type),
                    to_string(a.k_format), to_string(a.v_format)));
  check(a.window == 0, "a sliding window");
  check(a.max_tokens <= a.max_seqs,
        fmt::format("steps of up to {} tokens for {} sequences: only one token each", a.max_tokens,
                    a.max_seqs));
  check(a.workspace != 0 && a.workspace_rows >= d.rows,
        fmt::format("a workspace for {} rows: {} are needed", a.workspace_rows, d.rows));
  check(a.block_size != 0 && (a.block_size & (a.block_size - 1)) == 0,
        fmt::format("blocks of {} tokens: only powers of two", a.block_size));
}

class FlashInferDecode {
 public:
  explicit FlashInferDecode(gpu::CudaKernelContext& context)
      : join_(context.function("flashinfer", "paged_decode_join")) {
    for (const std::uint32_t head_dim : kHeadDims) {
      for (const std::uint32_t group : kGroups) {
        parts_[{head_dim, group}] =
            context.function("flashinfer", fmt::format("paged_decode_{}_{}", head_dim, group),
                             block_shape(head_dim, group).shared_bytes);
      }
    }
  }

  void launch(gpu::CudaLaunch& to, const AttentionArgs& args) const {
    const std::uint32_t group = args.num_kv_heads == 0 ? 0 : args.num_q_heads / args.num_kv_heads;
    const auto part = parts_.find({args.head_dim, group});
    check(part != parts_.end() && group * args.num_kv_heads == args.num_q_heads,
          fmt::format("head_dim {} with {} query heads on {} KV heads", args.head_dim, args.num_q_heads,
                      args.num_kv_heads));
    if (args.max_tokens == 0 || args.max_seqs == 0 || args.table_stride == 0) return;
    const Division d = division(args);
    check(args, d);
    const BlockShape block = block_shape(args.head_dim, group);
    to.kernel(part->second,
              {.grid = {d.rows * d.parts, args.num_kv_heads},
               .block = {block.lanes, group, block.tokens},
               .shared_bytes = block.shared_bytes},
              args);
    to.kernel(join_, {.grid = {d.rows, args.num_q_heads}, .block = {args.head_dim}}, args);
  }

 private:
  gpu::CudaFunction join_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, gpu::CudaFunction> parts_;  // by head_dim and group
};

}  // namespace

void register_flashinfer(gpu::CudaKernelTable& table) {
  table.add_module("flashinfer", flashinfer_images());
  table.add_host(kFlashInferDecode,
                 [](gpu::CudaKernelContext& context) { return std::make_unique<FlashInferDecode>(context); });
}

}  // namespace metrale::kernels
