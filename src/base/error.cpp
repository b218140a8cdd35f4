// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale {
namespace {

std::string with_detail(std::string text, std::string_view detail) {
  if (!detail.empty()) text += fmt::format(": {}", detail);
  return text;
}

std::string io_text(std::string_view operation, std::string_view path, int error_number, std::uint64_t offset,
                    std::string_view detail) {
  std::string text = fmt::format("{} '{}'", operation, path);
  if (offset != 0) text += fmt::format(" at byte {}", offset);
  if (error_number != 0) text += fmt::format(": {}", std::strerror(error_number));
  return with_detail(std::move(text), detail);
}

}  // namespace

OutOfMemory::OutOfMemory(std::string_view tier, std::uint64_t wanted_bytes, std::uint64_t free_bytes,
                         std::string_view advice)
    : Error(with_detail(
          fmt::format("not enough {} memory: {} bytes wanted, {} free", tier, wanted_bytes, free_bytes),
          advice)),
      tier_(tier),
      wanted_bytes_(wanted_bytes),
      free_bytes_(free_bytes) {}

DeviceError::DeviceError(std::string_view call, int code, std::string_view detail, bool context_lost)
    : Error(with_detail(fmt::format("{} failed ({})", call, code), detail)),
      call_(call),
      code_(code),
      context_lost_(context_lost) {}

IoError::IoError(std::string_view operation, std::string_view path, int error_number, std::uint64_t offset,
                 std::string_view detail)
    : Error(io_text(operation, path, error_number, offset, detail)),
      path_(path),
      error_number_(error_number),
      offset_(offset) {}

FormatError::FormatError(std::string_view path, std::uint64_t offset, std::string_view problem)
    : Error(offset == 0 ? fmt::format("'{}': {}", path, problem)
                        : fmt::format("'{}', byte {}: {}", path, offset, problem)),
      path_(path),
      offset_(offset),
      problem_(problem) {}

PeerError::PeerError(std::string_view peer, std::string_view problem, bool retryable)
    : Error(fmt::format("peer {}: {}", peer, problem)), peer_(peer), retryable_(retryable) {}

Unsupported::Unsupported(std::string_view who, std::string_view feature)
    : Error(fmt::format("{} does not support {}", who, feature)) {}

}  // namespace metrale
