// SPDX-License-Identifier: Apache-2.0
// Faulty system calls for one test program: its own pread, write, fsync and mmap stand before libc's and ask
// a hook first. Only code that is linked statically into the program sees them.
#pragma once

#include <functional>
#include <sys/types.h>
#include <utility>

namespace metrale::io_shim {

using Pread = std::function<ssize_t(int fd, void* out, std::size_t count, off_t offset)>;
using Write = std::function<ssize_t(int fd, const void* bytes, std::size_t count)>;
using Fsync = std::function<int(int fd)>;
// Whether mapping a file is refused, and with which errno; 0 maps it.
using Mmap = std::function<int(int fd)>;

// The calls themselves.
ssize_t real_pread(int fd, void* out, std::size_t count, off_t offset);
ssize_t real_write(int fd, const void* bytes, std::size_t count);

// A hook is in place as long as this lives. Not for several threads.
class Hook {
 public:
  explicit Hook(std::function<void()> remove) : remove_(std::move(remove)) {}
  ~Hook() { remove_(); }
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

 private:
  std::function<void()> remove_;
};
[[nodiscard]] Hook on_pread(Pread hook);
[[nodiscard]] Hook on_write(Write hook);
[[nodiscard]] Hook on_fsync(Fsync hook);
[[nodiscard]] Hook on_mmap(Mmap hook);

// The largest block that `operator new` was asked for since the last call with `reset`.
std::size_t largest_allocation(bool reset);

}  // namespace metrale::io_shim
