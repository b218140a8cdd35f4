// SPDX-License-Identifier: Apache-2.0
// The typed errors of the library: one level under Error, each carrying the facts a caller can act on.
// What should not happen is thrown; what will happen (pool empty, prefix miss) is returned as a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace metrale {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A caller's mistake or a bad setting.
class InvalidArgument final : public Error {
 public:
  using Error::Error;
};

// A tier (device memory, pinned memory, KV blocks, …) cannot give what was asked.
class OutOfMemory final : public Error {
 public:
  OutOfMemory(std::string_view tier, std::uint64_t wanted_bytes, std::uint64_t free_bytes,
              std::string_view advice = {});
  [[nodiscard]] const std::string& tier() const noexcept { return tier_; }
  [[nodiscard]] std::uint64_t wanted_bytes() const noexcept { return wanted_bytes_; }
  [[nodiscard]] std::uint64_t free_bytes() const noexcept { return free_bytes_; }

 private:
  std::string tier_;
  std::uint64_t wanted_bytes_;
  std::uint64_t free_bytes_;
};

// A device call or a kernel failed. After context_lost() handles are abandoned, not destroyed.
class DeviceError final : public Error {
 public:
  DeviceError(std::string_view call, int code, std::string_view detail, bool context_lost = false);
  [[nodiscard]] const std::string& call() const noexcept { return call_; }
  [[nodiscard]] int code() const noexcept { return code_; }
  [[nodiscard]] bool context_lost() const noexcept { return context_lost_; }

 private:
  std::string call_;
  int code_;
  bool context_lost_;
};

// A file operation failed. `error_number` is an errno value, 0 for a premature end of file.
class IoError final : public Error {
 public:
  IoError(std::string_view operation, std::string_view path, int error_number, std::uint64_t offset = 0,
          std::string_view detail = {});
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int error_number() const noexcept { return error_number_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::string path_;
  int error_number_;
  std::uint64_t offset_;
};

// Bytes that are not what their format says. `offset` is the byte in the file (or text) where it shows.
class FormatError final : public Error {
 public:
  FormatError(std::string_view path, std::uint64_t offset, std::string_view problem);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  std::string path_;
  std::uint64_t offset_;
  std::string problem_;
};

// Another host failed or refused.
class PeerError final : public Error {
 public:
  PeerError(std::string_view peer, std::string_view problem, bool retryable);
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  [[nodiscard]] bool retryable() const noexcept { return retryable_; }

 private:
  std::string peer_;
  bool retryable_;
};

// `who` (a backend, a format, a build) does not have `feature`.
class Unsupported final : public Error {
 public:
  Unsupported(std::string_view who, std::string_view feature);
};

// The caller's own callback or signal asked for an end; nothing is wrong.
class Cancelled final : public Error {
 public:
  using Error::Error;
};

// Throws InvalidArgument(message) unless `condition` holds.
inline void expects(bool condition, const char* message) {
  if (!condition) [[unlikely]]
    throw InvalidArgument(message);
}

}  // namespace metrale
