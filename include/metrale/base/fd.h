// SPDX-License-Identifier: Apache-2.0
// UniqueFd and MappedFile: owners of a descriptor and of a read-only mapping, and the one loop that reads a
// file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace metrale {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    UniqueFd moved(std::move(other));
    std::swap(fd_, moved.fd_);
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// Opens for reading (O_CLOEXEC); of a pipe, waits for who writes. Throws IoError.
[[nodiscard]] UniqueFd open_for_reading(const std::string& path);
// As open_for_reading, of regular files only, and without waiting for anybody. Throws IoError;
// InvalidArgument for what is no regular file.
[[nodiscard]] UniqueFd open_regular_file(const std::string& path);

// What fstat says; compared before and after a read to find a file that changed under us.
struct FileIdentity {
  std::uint64_t size_bytes = 0;
  std::uint64_t inode = 0;
  std::uint64_t device = 0;
  std::int64_t modified_ns = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};
// Throws IoError; InvalidArgument where `fd` is not a regular file.
[[nodiscard]] FileIdentity identify(const UniqueFd& fd, const std::string& path);

// Fills `out` from `offset`: retries EINTR, continues short reads, at most 1 GiB a call. Throws IoError: a
// premature end of file names the offset, the expected and the available bytes.
void read_exactly(const UniqueFd& fd, std::span<std::byte> out, std::uint64_t offset,
                  const std::string& path);

// As read_exactly; of what follows, the system reads nothing ahead.
void read_exactly_no_further(const UniqueFd& fd, std::span<std::byte> out, std::uint64_t offset,
                             const std::string& path);

// The whole regular file; refuses one larger than `max_bytes` before reading it. Throws IoError, FormatError.
[[nodiscard]] std::string read_text_file(const std::string& path, std::uint64_t max_bytes);

// A private read-only mapping of a whole regular file. An empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws IoError (also where the file system cannot map).
  MappedFile(const UniqueFd& fd, const std::string& path);
  ~MappedFile() { reset(); }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    MappedFile moved(std::move(other));
    std::swap(data_, moved.data_);
    std::swap(size_bytes_, moved.size_bytes_);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  void reset() noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace metrale
