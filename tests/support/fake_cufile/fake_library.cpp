// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cufile/fake_library.h"

#include <dlfcn.h>
#include <stdexcept>

namespace metrale::test {

std::string fake_cufile_path() {
  return METRALE_FAKE_CUFILE;
}

CufileKnobs& fake_cufile_knobs() {
  void* const library = ::dlopen(METRALE_FAKE_CUFILE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  using Get = CufileKnobs* (*)();
  const auto get = reinterpret_cast<Get>(::dlsym(library, "fake_cufile_knobs"));
  ::dlclose(library);
  return *get();
}

}  // namespace metrale::test
