// SPDX-License-Identifier: Apache-2.0
// Modules of the fake driver: a text that names functions which the fake has bodies of, and variables.
//
//   fake module
//   function scale
//   function empty 4096          (bytes of static shared memory)
//   variable metrale_device_fault 8
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/fake_cuda/machine.h"

namespace fake_cuda {

// What a body sees of its launch.
struct Launch {
  std::vector<std::vector<std::byte>> params;
  std::uint64_t fault_address = 0;  // the module's variable; 0: it has none
  std::shared_ptr<std::atomic<bool>> lost;

  template <class T>
  [[nodiscard]] T param(std::size_t index) const {
    T value;
    std::copy_n(params[index].begin(), sizeof(T), reinterpret_cast<std::byte*>(&value));
    return value;
  }
};

struct Body {
  std::vector<std::size_t> param_bytes;
  void (*run)(const Launch& launch);
};
// Null where there is no body of that name.
[[nodiscard]] const Body* find_body(const std::string& name);

struct Module {
  std::map<std::string, std::shared_ptr<Function>> functions;
  std::map<std::string, std::uint64_t> variables;  // addresses
};

struct Function {
  const Body* body = nullptr;
  Context* context = nullptr;
  std::uint64_t fault_variable = 0;  // its address; 0: the module has none
  int static_shared_bytes = 0;
  std::atomic<int> max_shared_bytes{48 << 10};  // of dynamic shared memory
};

}  // namespace fake_cuda
