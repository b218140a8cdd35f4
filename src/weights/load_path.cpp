// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/vfs.h>

#include <fmt/format.h>

#include <metrale/io/file.h>
#include <metrale/weights/load_path.h>

namespace metrale::weights {
namespace {

constexpr std::array<std::string_view, 4> kNames{"auto", "direct", "buffered", "mmap"};

bool lies_in_memory(int fd) {
  struct statfs info{};
  if (::fstatfs(fd, &info) != 0) return false;
  const auto type = static_cast<std::uint64_t>(info.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC || type == HUGETLBFS_MAGIC;
}

}  // namespace

std::string_view to_string(LoadPath path) {
  return kNames[static_cast<std::size_t>(path)];
}

std::optional<LoadPath> parse_load_path(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<LoadPath>(i);
  }
  return std::nullopt;
}

LoadPathChoice choose_load_path(const std::string& path, std::uint64_t size_bytes, io::FileCalls& calls) {
  const io::File file = io::File::open(path, io::OpenMode::kRead, calls);
  if (lies_in_memory(file.fd())) return {LoadPath::kBuffered, "it lies in memory already", true};
  const std::uint64_t resident = file.resident_bytes();
  if (resident > size_bytes / 2) {
    return {LoadPath::kBuffered,
            fmt::format("{:.0f} % of it are in the page cache",
                        100.0 * static_cast<double>(resident) / static_cast<double>(size_bytes)),
            true};
  }
  if (!io::File::try_open_direct(path, io::OpenMode::kRead, calls)) {
    return {LoadPath::kBuffered, "its file system has no direct I/O"};
  }
  return {LoadPath::kDirect, "it is not in the page cache"};
}

}  // namespace metrale::weights
