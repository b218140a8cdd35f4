// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <weights/io_shim.h>

namespace metrale::io_shim {
namespace {

// Plain pointers: mmap is called before any constructor has run.
constinit const Pread* pread_hook = nullptr;
constinit const Write* write_hook = nullptr;
constinit const Fsync* fsync_hook = nullptr;
constinit const Mmap* mmap_hook = nullptr;
constinit std::atomic<std::size_t> largest{0};

template <class Function>
Hook install(const Function*& slot, Function hook) {
  slot = new Function(std::move(hook));
  return Hook([&slot] {
    delete slot;
    slot = nullptr;
  });
}

}  // namespace

Hook on_pread(Pread hook) {
  return install(pread_hook, std::move(hook));
}
Hook on_write(Write hook) {
  return install(write_hook, std::move(hook));
}
Hook on_fsync(Fsync hook) {
  return install(fsync_hook, std::move(hook));
}
Hook on_mmap(Mmap hook) {
  return install(mmap_hook, std::move(hook));
}

ssize_t real_pread(int fd, void* out, std::size_t count, off_t offset) {
  return ::syscall(SYS_pread64, fd, out, count, offset);
}
ssize_t real_write(int fd, const void* bytes, std::size_t count) {
  return ::syscall(SYS_write, fd, bytes, count);
}

std::size_t largest_allocation(bool reset) {
  return reset ? largest.exchange(0) : largest.load();
}

}  // namespace metrale::io_shim

namespace shim = metrale::io_shim;

extern "C" {

ssize_t pread(int fd, void* out, std::size_t count, off_t offset) {
  return shim::pread_hook != nullptr ? (*shim::pread_hook)(fd, out, count, offset)
                                     : shim::real_pread(fd, out, count, offset);
}

ssize_t write(int fd, const void* bytes, std::size_t count) {
  return shim::write_hook != nullptr ? (*shim::write_hook)(fd, bytes, count)
                                     : shim::real_write(fd, bytes, count);
}

int fsync(int fd) {
  return shim::fsync_hook != nullptr ? (*shim::fsync_hook)(fd) : static_cast<int>(::syscall(SYS_fsync, fd));
}

void* mmap(void* address, std::size_t length, int protection, int flags, int fd, off_t offset) noexcept {
  if (fd >= 0 && shim::mmap_hook != nullptr) {
    if (const int error = (*shim::mmap_hook)(fd); error != 0) {
      errno = error;
      return MAP_FAILED;
    }
  }
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, length, protection, flags, fd, offset));
}

}  // extern "C"

// Every form that a program may pair with the operator delete below, so that sanitizers see matching ones.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  std::size_t seen = shim::largest.load(std::memory_order_relaxed);
  while (size > seen && !shim::largest.compare_exchange_weak(seen, size, std::memory_order_relaxed)) {
  }
  return std::malloc(std::max<std::size_t>(size, 1));
}
void* operator new(std::size_t size) {
  if (void* block = operator new(size, std::nothrow)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept {
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}
