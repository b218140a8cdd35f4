// SPDX-License-Identifier: Apache-2.0
// FileCalls: the system calls by which a File opens and transfers. Others stand in front of the system's
// where a test wants a file system that refuses direct I/O or fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace metrale::io {

// Thread-safe. Results are those of the system, with -errno for a failure; nothing is retried here.
class FileCalls {
 public:
  FileCalls() = default;
  virtual ~FileCalls() = default;
  FileCalls(const FileCalls&) = delete;
  FileCalls& operator=(const FileCalls&) = delete;

  // `flags` are those of open(2). A descriptor.
  [[nodiscard]] int open(const std::string& path, int flags) { return do_open(path, flags); }
  // Bytes; 0 at the end of the file.
  [[nodiscard]] std::int64_t read(int fd, std::span<std::byte> out, std::uint64_t offset) {
    return do_read(fd, out, offset);
  }
  [[nodiscard]] std::int64_t write(int fd, std::span<const std::byte> from, std::uint64_t offset) {
    return do_write(fd, from, offset);
  }

 private:
  [[nodiscard]] virtual int do_open(const std::string& path, int flags) = 0;
  [[nodiscard]] virtual std::int64_t do_read(int fd, std::span<std::byte> out, std::uint64_t offset) = 0;
  [[nodiscard]] virtual std::int64_t do_write(int fd, std::span<const std::byte> from,
                                              std::uint64_t offset) = 0;
};

// The system's own; without state, alive for as long as the process.
[[nodiscard]] FileCalls& system_file_calls();

}  // namespace metrale::io
