// SPDX-License-Identifier: Apache-2.0
// CufileLibrary: the calls of cuFile that are made here, found at run time. The declarations follow the
// library's stable binary interface; no header of it is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <sys/types.h>

namespace metrale::io::cufile {

struct Status {
  int code = 0;         // 0, or above 5000
  int driver_code = 0;  // of the CUDA driver, with code 5011
};
inline constexpr int kDriverAlreadyOpen = 5026;
inline constexpr int kHandleNotRegistered = 5027;

inline constexpr int kHandleTypeDescriptor = 1;
struct Descriptor {
  int type = kHandleTypeDescriptor;
  union {
    int fd = -1;
    void* other;
  };
  const void* file_system = nullptr;
};

using Handle = void*;

struct Library {
  Status (*driver_open)() = nullptr;
  Status (*handle_register)(Handle* handle, Descriptor* descriptor) = nullptr;
  void (*handle_deregister)(Handle handle) = nullptr;
  Status (*buffer_register)(const void* base, std::size_t bytes, int flags) = nullptr;
  Status (*buffer_deregister)(const void* base) = nullptr;
  ssize_t (*read)(Handle handle, void* base, std::size_t bytes, off_t file_offset,
                  off_t base_offset) = nullptr;
  ssize_t (*write)(Handle handle, const void* base, std::size_t bytes, off_t file_offset,
                   off_t base_offset) = nullptr;
};

// The first of `names` that is there, its driver open. It stays loaded and its driver open until the process
// ends: others in the process may use them too. Throws Unsupported, saying why.
[[nodiscard]] Library load(std::span<const std::string> names, const std::string& cuda_library);

}  // namespace metrale::io::cufile
