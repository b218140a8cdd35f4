// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_args.h"

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::kernels {

std::uint32_t read_rows(std::string_view kernel, std::uint64_t rows, std::uint32_t max_rows) {
  const std::uint32_t count = *host_ptr<const std::uint32_t>(rows);
  if (count > max_rows) {
    throw InvalidArgument(fmt::format("{}: {} rows in this step, but the launch was made for at most {}",
                                      kernel, count, max_rows));
  }
  return count;
}

void check_type(std::string_view kernel, quant::ElementType type) {
  if (static_cast<std::uint32_t>(type) > static_cast<std::uint32_t>(quant::ElementType::kF16)) {
    throw Unsupported(kernel, fmt::format("element type {}", static_cast<std::uint32_t>(type)));
  }
}

void check_kv_format(std::string_view kernel, quant::KvFormat format, std::uint32_t head_dim) {
  const auto value = static_cast<std::uint32_t>(format);
  if (value >= quant::kKvFormats.size()) throw Unsupported(kernel, fmt::format("KV format {}", value));
  if (head_dim == 0 || head_dim > quant::kKvMaxHeadDim) {
    throw Unsupported(kernel, fmt::format("head_dim {}: 1 to {} are", head_dim, quant::kKvMaxHeadDim));
  }
  if (!quant::kv_format_takes(format, head_dim)) {
    throw Unsupported(kernel,
                      fmt::format("KV format {} with head_dim {}", quant::to_string(format), head_dim));
  }
}

void check_block_size(std::string_view kernel, std::uint32_t block_size, quant::KvFormat v_format) {
  if (block_size == 0) throw InvalidArgument(fmt::format("{}: block_size is 0", kernel));
  if (v_format == quant::KvFormat::kTurbo3 && block_size % 8 != 0) {
    throw InvalidArgument(
        fmt::format("{}: blocks of {} tokens; values in turbo3 need a multiple of 8", kernel, block_size));
  }
}

void check_cuda_kv_format(std::string_view kernel, quant::KvFormat format) {
  if (quant::kv_format_info(format).on_cuda) return;
  throw Unsupported(kernel, fmt::format("KV format {} on CUDA; the CPU serves it", quant::to_string(format)));
}

}  // namespace metrale::kernels
