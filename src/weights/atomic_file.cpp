// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
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

AtomicFile::AtomicFile(const std::string& path, std::uint32_t mode) : path_(path) {
  for (;;) {
    part_path_ = next_part_path(path);
    fd_ = UniqueFd(::open(part_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
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

void AtomicFile::take_access_of(int fd) {
  struct stat other{};
  if (::fstat(fd, &other) != 0) throw IoError("cannot read", path_, errno);
  mode_t mode = other.st_mode & 0777U;
  const bool has_group = ::fchown(fd_.get(), other.st_uid, other.st_gid) == 0 ||
                         ::fchown(fd_.get(), static_cast<uid_t>(-1), other.st_gid) == 0;
  if (!has_group) mode &= ~mode_t{070} | ((mode & 07U) << 3);
  if (::fchmod(fd_.get(), mode) != 0) throw IoError("cannot set the mode of", path_, errno);
}

void AtomicFile::commit() {
  sync(fd_.get(), path_);
  fd_.reset();
  if (std::rename(part_path_.c_str(), path_.c_str()) != 0) throw IoError("cannot rename to", path_, errno);
  part_path_.clear();
  sync_directory_of(path_);
}

}  // namespace metrale::weights
