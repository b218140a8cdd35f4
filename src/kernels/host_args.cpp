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

void check_kv_format(std::string_view kernel, quant::KvFormat format) {
  const auto value = static_cast<std::uint32_t>(format);
  if (value >= quant::kKvFormats.size()) throw Unsupported(kernel, fmt::format("KV format {}", value));
  if (!quant::kv_format_info(format).has_kernels) {
    throw Unsupported(kernel, fmt::format("KV format {}", quant::to_string(format)));
  }
}

}  // namespace metrale::kernels
