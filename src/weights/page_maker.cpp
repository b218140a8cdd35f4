// SPDX-License-Identifier: Apache-2.0
#include "weights/page_maker.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <stop_token>
#include <sys/mman.h>
#include <system_error>
#include <utility>

#include <metrale/base/checked.h>
#include <metrale/base/log.h>

namespace metrale::weights {
namespace {

constexpr std::uintptr_t kPageBytes = 4096;
constexpr std::uintptr_t kStepBytes = std::uintptr_t{4} << 20;

void make_pages(const std::stop_token& stop, std::span<const std::span<std::byte>> ranges) {
  for (const std::span<std::byte> range : ranges) {
    if (range.empty()) continue;
    std::byte* const end = range.data() + range.size();
    std::byte* at = range.data() - reinterpret_cast<std::uintptr_t>(range.data()) % kPageBytes;
    while (at < end) {
      if (stop.stop_requested()) return;
      const std::size_t to_step = kStepBytes - reinterpret_cast<std::uintptr_t>(at) % kStepBytes;
      const std::size_t bytes = std::min(to_step, round_up(static_cast<std::size_t>(end - at), kPageBytes));
      if (::madvise(at, bytes, MADV_POPULATE_WRITE) == 0) {
        at += bytes;
      } else if (errno != EINTR) {
        return;
      }
    }
  }
}

}  // namespace

void PageMaker::start(std::vector<std::span<std::byte>> ranges) {
  if (ranges.empty()) return;
  try {
    thread_ =
        std::jthread([ranges = std::move(ranges)](const std::stop_token& stop) { make_pages(stop, ranges); });
  } catch (const std::system_error& error) {
    log().debug("pages are made by who writes them: {}", error.what());
  }
}

}  // namespace metrale::weights
