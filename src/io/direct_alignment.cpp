// SPDX-License-Identifier: Apache-2.0
#include "io/direct_alignment.h"

#include <algorithm>
#include <bit>
#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>

#include <fmt/format.h>

namespace metrale::io {
namespace {

// Of Linux 6.1; the C library may be older than the kernel.
constexpr unsigned kStatxDirectAlignment = 0x2000;
constexpr std::uint32_t kMinMemoryBytes = 512;

}  // namespace

std::optional<DirectAlignment> block_device_alignment(const std::string& block_devices,
                                                      const std::string& device) {
  for (const char* const queue : {"queue", "../queue"}) {
    std::ifstream file(fmt::format("{}/{}/{}/logical_block_size", block_devices, device, queue));
    std::uint32_t bytes = 0;
    if (file >> bytes && std::has_single_bit(bytes)) {
      return DirectAlignment{.memory_bytes = std::max(bytes, kMinMemoryBytes), .offset_bytes = bytes};
    }
  }
  return std::nullopt;
}

std::optional<DirectAlignment> find_direct_alignment(int fd, const std::string& block_devices) {
  struct statx info{};
  if (::statx(fd, "", AT_EMPTY_PATH, kStatxDirectAlignment, &info) != 0) return std::nullopt;
  if ((info.stx_mask & kStatxDirectAlignment) != 0) {
    if (!std::has_single_bit(info.stx_dio_offset_align)) return std::nullopt;  // 0: this file cannot
    return DirectAlignment{.memory_bytes = std::max(info.stx_dio_mem_align, kMinMemoryBytes),
                           .offset_bytes = info.stx_dio_offset_align};
  }
  return block_device_alignment(block_devices, fmt::format("{}:{}", info.stx_dev_major, info.stx_dev_minor));
}

}  // namespace metrale::io
