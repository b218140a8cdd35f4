// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>

namespace metrale {

void UniqueFd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

namespace {

UniqueFd open_with(const std::string& path, int flags) {
  for (;;) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
    if (fd.is_open()) return fd;
    if (errno != EINTR) throw IoError("cannot open", path, errno);
  }
}

}  // namespace

UniqueFd open_for_reading(const std::string& path) {
  return open_with(path, 0);
}

UniqueFd open_regular_file(const std::string& path) {
  UniqueFd fd = open_with(path, O_NONBLOCK | O_NOCTTY);
  static_cast<void>(identify(fd, path));
  // Of a regular file the flag means nothing to reads, but something to io_uring.
  if (::fcntl(fd.get(), F_SETFL, 0) != 0) throw IoError("cannot open", path, errno);
  return fd;
}

FileIdentity identify(const UniqueFd& fd, const std::string& path) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) throw IoError("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode)) throw InvalidArgument(fmt::format("'{}' is not a regular file", path));
  return {.size_bytes = static_cast<std::uint64_t>(info.st_size),
          .inode = info.st_ino,
          .device = info.st_dev,
          .modified_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

void read_exactly(const UniqueFd& fd, std::span<std::byte> out, std::uint64_t offset,
                  const std::string& path) {
  constexpr std::size_t kMaxCallBytes = std::size_t{1} << 30;
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t want = std::min(out.size() - done, kMaxCallBytes);
    const ssize_t got = ::pread(fd.get(), out.data() + done, want, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw IoError("cannot read", path, 0, offset + done,
                    fmt::format("the file ends here; {} bytes wanted from byte {}, {} there", out.size(),
                                offset, done));
    } else if (errno != EINTR) {
      throw IoError("cannot read", path, errno, offset + done);
    }
  }
}

void read_exactly_no_further(const UniqueFd& fd, std::span<std::byte> out, std::uint64_t offset,
                             const std::string& path) {
  // Advice: where it is refused, only the page cache is fuller.
  static_cast<void>(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM));
  read_exactly(fd, out, offset, path);
  static_cast<void>(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_NORMAL));
}

std::string read_text_file(const std::string& path, std::uint64_t max_bytes) {
  const UniqueFd fd = open_regular_file(path);
  const std::uint64_t size = identify(fd, path).size_bytes;
  if (size > max_bytes) {
    throw FormatError(path, 0, fmt::format("{} bytes long, more than the {} allowed", size, max_bytes));
  }
  std::string text(size, '\0');
  read_exactly(fd, std::as_writable_bytes(std::span(text)), 0, path);
  return text;
}

MappedFile::MappedFile(const UniqueFd& fd, const std::string& path) {
  const std::uint64_t size = identify(fd, path).size_bytes;
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) throw IoError("cannot map", path, errno);
  data_ = static_cast<std::byte*>(address);
  size_bytes_ = size;
}

void MappedFile::reset() noexcept {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
}

}  // namespace metrale
