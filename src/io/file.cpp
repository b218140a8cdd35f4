// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/io/file.h>

#include "io/direct_alignment.h"
#include "io/page_cache.h"
#include "io/progress.h"

namespace metrale::io {
namespace {

int flags_of(OpenMode mode) {
  constexpr int kAlways = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;  // a pipe in the file's place is not waited for
  switch (mode) {
    case OpenMode::kRead:
      return kAlways | O_RDONLY;
    case OpenMode::kReadWrite:
      return kAlways | O_RDWR;
    case OpenMode::kCreate:
      return kAlways | O_RDWR | O_CREAT | O_TRUNC;
  }
  throw InvalidArgument("unknown mode to open a file in");
}

// Of a regular file O_NONBLOCK means nothing to reads, but something to io_uring.
void stop_nonblocking(int fd, const std::string& path) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) throw IoError("cannot open", path, errno);
}

// A descriptor or -errno.
int open_uninterrupted(FileCalls& calls, const std::string& path, int flags) {
  for (;;) {
    const int fd = calls.open(path, flags);
    if (fd != -EINTR) return fd;
  }
}

// Calls until it is not interrupted; 0 or an errno value.
template <class Call>
int error_of_call(Call call) {
  for (;;) {
    if (call() == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

off_t to_offset(std::uint64_t bytes) {
  expects(std::bit_width(bytes) < 64, "a file cannot be that long");
  return static_cast<off_t>(bytes);
}

}  // namespace

File::File(UniqueFd fd, std::string path, OpenMode mode, bool is_direct, FileCalls& calls)
    : fd_(std::move(fd)),
      path_(std::move(path)),
      mode_(mode),
      is_direct_(is_direct),
      alignment_(find_direct_alignment(fd_.get())),
      calls_(&calls) {}

File File::open(const std::string& path, OpenMode mode, FileCalls& calls) {
  const int fd = open_uninterrupted(calls, path, flags_of(mode));
  if (fd < 0) throw IoError("cannot open", path, -fd);
  File file(UniqueFd(fd), path, mode, false, calls);
  static_cast<void>(file.identity());
  stop_nonblocking(fd, path);
  return file;
}

std::optional<File> File::try_open_direct(const std::string& path, OpenMode mode, FileCalls& calls) {
  const int fd = open_uninterrupted(calls, path, flags_of(mode) | O_DIRECT);
  if (fd == -EINVAL || fd == -EOPNOTSUPP) return std::nullopt;
  if (fd < 0) throw IoError("cannot open", path, -fd, 0, "for direct I/O");
  File file(UniqueFd(fd), path, mode, true, calls);
  static_cast<void>(file.identity());
  stop_nonblocking(fd, path);
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_DIRECT) == 0 || !file.alignment_) return std::nullopt;
  return file;
}

void File::check_unchanged(const FileIdentity& before) const {
  const FileIdentity now = identity();
  if (now == before) return;
  const bool is_other = now.inode != before.inode || now.device != before.device;
  std::string what = "the file was written to";
  if (is_other) {
    what = "another file has taken its place";
  } else if (now.size_bytes != before.size_bytes) {
    what = fmt::format("the file has changed: {} bytes before, {} now", before.size_bytes, now.size_bytes);
  }
  throw IoError("cannot trust", path_, 0, 0, what);
}

void File::check_alignment(const void* address, std::size_t bytes, std::uint64_t offset) const {
  if (!is_direct_) return;
  const DirectAlignment align = alignment_.value_or(DirectAlignment{});
  if (std::bit_cast<std::uintptr_t>(address) % align.memory_bytes == 0 && bytes % align.offset_bytes == 0 &&
      offset % align.offset_bytes == 0) {
    return;
  }
  throw InvalidArgument(fmt::format(
      "direct I/O on '{}' wants addresses at multiples of {} bytes, offsets and lengths at multiples of {}",
      path_, align.memory_bytes, align.offset_bytes));
}

std::uint32_t File::granule_bytes() const {
  if (!is_direct_) return 1;
  const DirectAlignment align = alignment_.value_or(DirectAlignment{});
  return std::max(align.memory_bytes, align.offset_bytes);
}

std::size_t File::read_up_to(std::span<std::byte> out, std::uint64_t offset) const {
  if (out.empty()) return 0;
  check_alignment(out.data(), out.size(), offset);
  Progress progress(IoKind::kRead, out.size(), granule_bytes());
  for (;;) {
    const Progress::Attempt attempt = progress.next();
    const std::int64_t result =
        calls_->read(fd_.get(), out.subspan(attempt.at, attempt.bytes), offset + attempt.at);
    const Progress::Step step = progress.take(result);
    if (step == Progress::Step::kFailed) {
      throw IoError("cannot read", path_, progress.error_number(), offset + progress.done_bytes());
    }
    if (step != Progress::Step::kMore) return progress.done_bytes();
  }
}

void File::read_at(std::span<std::byte> out, std::uint64_t offset) const {
  const std::size_t got = read_up_to(out, offset);
  if (got == out.size()) return;
  throw IoError(
      "cannot read", path_, 0, offset + got,
      fmt::format("the file ends here; {} bytes wanted from byte {}, {} there", out.size(), offset, got));
}

void File::write_at(std::span<const std::byte> from, std::uint64_t offset) {
  if (from.empty()) return;
  check_alignment(from.data(), from.size(), offset);
  Progress progress(IoKind::kWrite, from.size(), granule_bytes());
  for (;;) {
    const Progress::Attempt attempt = progress.next();
    const std::int64_t result =
        calls_->write(fd_.get(), from.subspan(attempt.at, attempt.bytes), offset + attempt.at);
    const Progress::Step step = progress.take(result);
    if (step == Progress::Step::kDone) return;
    if (step == Progress::Step::kMore) continue;
    throw IoError(
        "cannot write", path_, progress.error_number(), offset + progress.done_bytes(),
        fmt::format("{} bytes wanted at byte {}, {} written", from.size(), offset, progress.done_bytes()));
  }
}

void File::sync() {
  const int error = error_of_call([&] { return ::fdatasync(fd_.get()); });
  if (error != 0) throw IoError("cannot sync", path_, error);
}

bool File::allocate(std::uint64_t bytes) {
  const off_t length = to_offset(bytes);
  const int error = length == 0 ? 0 : error_of_call([&] { return ::fallocate(fd_.get(), 0, 0, length); });
  if (error == 0) return true;
  if (error != EOPNOTSUPP) {
    throw IoError("cannot allocate", path_, error, 0, fmt::format("{} bytes wanted", bytes));
  }
  if (size_bytes() < bytes) resize(bytes);
  return false;
}

void File::resize(std::uint64_t bytes) {
  const off_t length = to_offset(bytes);
  const int error = error_of_call([&] { return ::ftruncate(fd_.get(), length); });
  if (error != 0) throw IoError("cannot resize", path_, error, 0, fmt::format("{} bytes wanted", bytes));
}

void File::drop_cache(FileRange range) const {
  const int error =
      ::posix_fadvise(fd_.get(), to_offset(range.offset), to_offset(range.bytes), POSIX_FADV_DONTNEED);
  if (error != 0) throw IoError("cannot drop the cached pages of", path_, error, range.offset);
}

std::uint64_t File::resident_bytes() const {
  const std::uint64_t size = size_bytes();
  if (const auto bytes = cachestat_bytes(fd_.get(), size)) return *bytes;
  if (const auto bytes = mincore_bytes(fd_.get(), size, path_)) return *bytes;
  return probed_bytes(fd_.get(), size);
}

}  // namespace metrale::io
