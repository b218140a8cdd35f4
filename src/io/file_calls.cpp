// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include <metrale/io/file_calls.h>

namespace metrale::io {
namespace {

class SystemFileCalls final : public FileCalls {
  int do_open(const std::string& path, int flags) override {
    constexpr mode_t kMode = 0666;  // less the umask
    const int fd = ::open(path.c_str(), flags, kMode);
    return fd >= 0 ? fd : -errno;
  }
  std::int64_t do_read(int fd, std::span<std::byte> out, std::uint64_t offset) override {
    const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    return got >= 0 ? got : -errno;
  }
  std::int64_t do_write(int fd, std::span<const std::byte> from, std::uint64_t offset) override {
    const ssize_t put = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    return put >= 0 ? put : -errno;
  }
};

}  // namespace

FileCalls& system_file_calls() {
  static SystemFileCalls calls;
  return calls;
}

}  // namespace metrale::io
