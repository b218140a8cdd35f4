// SPDX-License-Identifier: Apache-2.0
// libcufile over pread and pwrite: device addresses are host addresses here. Written after the header of
// cuFile 1.20.
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <set>
#include <unistd.h>

#include "support/fake_cufile/knobs.h"

namespace {

struct Status {
  int code;
  int driver_code;
};
struct Descriptor {
  int type;
  union {
    int fd;
    void* other;
  } handle;
  const void* file_system;
};
struct Handle {
  int fd;
};

metrale::test::CufileKnobs knobs;
std::mutex mutex;
std::set<const void*> bases;

// 0, or what the transfer gives without being done.
ssize_t refusal(const void* base, off_t base_offset) {
  {
    const std::scoped_lock lock(mutex);
    const bool is_known = bases.count(base) != 0;
    if (is_known) ++knobs.based_transfers;
    if (!is_known && base_offset != 0) ++knobs.unknown_bases;
  }
  const int code = knobs.transfer_code;
  if (code == 1) errno = EIO;
  return -code;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT metrale::test::CufileKnobs* fake_cufile_knobs() {
  return &knobs;
}

EXPORT Status cuFileDriverOpen() {
  ++knobs.driver_opens;
  return {knobs.driver_code, 0};
}

EXPORT Status cuFileHandleRegister(void** handle, Descriptor* descriptor) {
  if (knobs.handle_code != 0 || descriptor->type != 1) return {knobs.handle_code, 0};
  *handle = new Handle{descriptor->handle.fd};
  ++knobs.open_handles;
  return {0, 0};
}

EXPORT void cuFileHandleDeregister(void* handle) {
  delete static_cast<Handle*>(handle);
  --knobs.open_handles;
}

EXPORT Status cuFileBufRegister(const void* base, size_t, int) {
  if (knobs.buffer_code != 0) return {knobs.buffer_code, 0};
  const std::scoped_lock lock(mutex);
  bases.insert(base);
  ++knobs.open_buffers;
  return {0, 0};
}

EXPORT Status cuFileBufDeregister(const void* base) {
  const std::scoped_lock lock(mutex);
  bases.erase(base);
  --knobs.open_buffers;
  return {0, 0};
}

EXPORT ssize_t cuFileRead(void* handle, void* base, size_t bytes, off_t file_offset, off_t base_offset) {
  if (const ssize_t refused = refusal(base, base_offset)) return refused;
  return ::pread(static_cast<Handle*>(handle)->fd, static_cast<char*>(base) + base_offset, bytes,
                 file_offset);
}

EXPORT ssize_t cuFileWrite(void* handle, const void* base, size_t bytes, off_t file_offset,
                           off_t base_offset) {
  if (const ssize_t refused = refusal(base, base_offset)) return refused;
  return ::pwrite(static_cast<Handle*>(handle)->fd, static_cast<const char*>(base) + base_offset, bytes,
                  file_offset);
}
