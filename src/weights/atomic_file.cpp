// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/weights/atomic_file.h>

namespace metrale::weights {
namespace {

std::string next_part_path(const std::string& path) {
  static std::atomic<std::uint64_t> count{0};
  return fmt::format("{}.{}-{}.part", path, ::getpid(), count.fetch_add(1));
}

void sync(int fd, const std::string& path) {
  while (::fsync(fd) != 0) {
    if (errno != EINTR) throw IoError("cannot sync", path, errno);
  }
}

void sync_directory_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open()) throw IoError("cannot open", directory, errno);
  try {
    sync(fd.get(), directory);
  } catch (const IoError& error) {
    // Some file systems have nothing to sync for a directory and say so.
    if (error.error_number() != EINVAL) throw;
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  for (;;) {
    part_path_ = next_part_path(path);
    fd_ = UniqueFd(::open(part_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd_.is_open()) return;
    if (errno != EINTR && errno != EEXIST) throw IoError("cannot create", path, errno);
  }
}

AtomicFile::~AtomicFile() {
  if (!part_path_.empty()) ::unlink(part_path_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t kMaxCallBytes = std::size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), kMaxCallBytes));
    if (written < 0) {
      if (errno == EINTR) continue;
      throw IoError("cannot write", path_, errno, size_bytes_);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    size_bytes_ += static_cast<std::uint64_t>(written);
  }
}

void AtomicFile::commit() {
  sync(fd_.get(), path_);
  fd_.reset();
  if (std::rename(part_path_.c_str(), path_.c_str()) != 0) throw IoError("cannot rename to", path_, errno);
  part_path_.clear();
  sync_directory_of(path_);
}

}  // namespace metrale::weights
