// SPDX-License-Identifier: Apache-2.0
#include "io/page_cache.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

#include <metrale/base/error.h>

namespace metrale::io {
namespace {

// As in the kernel's headers of 6.5, which are newer than those that this is built with.
constexpr long kCachestat = 451;
struct CachestatRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // 0: to the end
};
struct Cachestat {
  std::uint64_t cached = 0;  // pages, here and below
  std::uint64_t dirty = 0;
  std::uint64_t under_writeback = 0;
  std::uint64_t evicted = 0;
  std::uint64_t recently_evicted = 0;
};

std::uint64_t page_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

bool owns_or_may_write(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return false;
  return info.st_uid == ::geteuid() || ::faccessat(fd, "", W_OK, AT_EMPTY_PATH | AT_EACCESS) == 0;
}

}  // namespace

std::optional<std::uint64_t> cachestat_bytes(int fd, std::uint64_t size_bytes) {
  CachestatRange range;
  Cachestat result;
  if (::syscall(kCachestat, fd, &range, &result, 0U) != 0) return std::nullopt;
  return std::min(size_bytes, result.cached * page_bytes());
}

std::optional<std::uint64_t> mincore_bytes(int fd, std::uint64_t size_bytes, const std::string& path) {
  constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 30;
  if (!owns_or_may_write(fd)) return std::nullopt;
  const std::uint64_t page = page_bytes();
  std::vector<unsigned char> pages;
  std::uint64_t resident = 0;
  for (std::uint64_t at = 0; at < size_bytes; at += kWindowBytes) {
    const std::uint64_t bytes = std::min(size_bytes - at, kWindowBytes);
    void* const window = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(at));
    if (window == MAP_FAILED) throw IoError("cannot map", path, errno, at);
    pages.assign((bytes + page - 1) / page, 0);
    const int error = ::mincore(window, bytes, pages.data()) == 0 ? 0 : errno;
    ::munmap(window, bytes);
    if (error != 0) throw IoError("cannot ask for the cached pages of", path, error, at);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if ((pages[i] & 1U) != 0) resident += std::min(page, bytes - i * page);
    }
  }
  return resident;
}

std::uint64_t probed_bytes(int fd, std::uint64_t size_bytes) {
  constexpr std::uint64_t kProbes = 64;
  if (size_bytes == 0) return 0;
  // Elsewhere each time: what one probe has read ahead is nothing that the next one may count.
  std::mt19937_64 random(
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  std::uniform_int_distribution<std::uint64_t> place(0, size_bytes - 1);
  std::uint64_t resident = 0;
  for (std::uint64_t i = 0; i < kProbes; ++i) {
    std::array<char, 1> byte{};
    const iovec to{byte.data(), byte.size()};
    if (::preadv2(fd, &to, 1, static_cast<off_t>(place(random)), RWF_NOWAIT) == 1) ++resident;
  }
  // Of a file beyond 2^58 bytes the product would not fit.
  return size_bytes / kProbes * resident + size_bytes % kProbes * resident / kProbes;
}

}  // namespace metrale::io
