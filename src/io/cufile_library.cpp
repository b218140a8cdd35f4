// SPDX-License-Identifier: Apache-2.0
#include "io/cufile_library.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::io::cufile {
namespace {

struct Opened {
  void* handle = nullptr;
  std::string name;
};

Opened open_first(std::span<const std::string> names) {
  std::string reasons;
  for (const std::string& name : names) {
    if (void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE))
      return {handle, name};
    const char* const reason = ::dlerror();
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", reason != nullptr ? reason : name);
  }
  throw Unsupported("this system",
                    fmt::format("cuFile: {}", reasons.empty() ? "no library is named" : reasons));
}

// Without a CUDA driver, opening the driver of cuFile 1.20 never returns.
void require_cuda(const Opened& library, const std::string& cuda_library) {
  if (void* const handle = ::dlopen(cuda_library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    ::dlclose(handle);
    return;
  }
  const char* const reason = ::dlerror();
  throw Unsupported(library.name, fmt::format("a system without a CUDA driver: {}",
                                              reason != nullptr ? reason : cuda_library));
}

class Resolver {
 public:
  explicit Resolver(const Opened& library) : library_(library) {}

  template <class Function>
  void operator()(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(library_.handle, name));
    if (function == nullptr)
      throw Unsupported(library_.name, fmt::format("{}: it is too old for this", name));
  }

 private:
  const Opened& library_;
};

}  // namespace

Library load(std::span<const std::string> names, const std::string& cuda_library) {
  const Opened opened = open_first(names);
  const Resolver find(opened);
  Library library;
  find("cuFileDriverOpen", library.driver_open);
  find("cuFileHandleRegister", library.handle_register);
  find("cuFileHandleDeregister", library.handle_deregister);
  find("cuFileBufRegister", library.buffer_register);
  find("cuFileBufDeregister", library.buffer_deregister);
  find("cuFileRead", library.read);
  find("cuFileWrite", library.write);
  require_cuda(opened, cuda_library);
  const Status status = library.driver_open();
  if (status.code != 0 && status.code != kDriverAlreadyOpen) {
    throw Unsupported(opened.name, fmt::format("this system: cuFileDriverOpen gave {} (CUDA driver: {})",
                                               status.code, status.driver_code));
  }
  return library;
}

}  // namespace metrale::io::cufile
