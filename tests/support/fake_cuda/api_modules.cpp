// SPDX-License-Identifier: Apache-2.0
// Modules, functions, launches.
#include <cstdio>
#include <cstring>
#include <sstream>

#include <metrale/gpu/device_fault.h>

#include "support/fake_cuda/api.h"
#include "support/fake_cuda/graph.h"
#include "support/fake_cuda/module.h"

namespace fake_cuda {
namespace {

using driver::DeviceAddress;
using driver::DriverFunction;
using driver::DriverModule;

constexpr Result kInvalidImage = 200;
constexpr Result kInvalidPtx = 218;
constexpr char kMagic[] = "fake module\n";
constexpr unsigned kMaxThreads = 1024;
constexpr int kMaxShared = 227 << 10;

// Where the caller wants to read what is wrong with an image.
struct ErrorLog {
  char* text = nullptr;
  std::size_t bytes = 0;
};

ErrorLog error_log(unsigned count, const int* names, void** values) {
  ErrorLog log;
  for (unsigned i = 0; i < count; ++i) {
    if (names[i] == driver::kJitErrorLogBuffer) log.text = static_cast<char*>(values[i]);
    if (names[i] == driver::kJitErrorLogBufferBytes) log.bytes = reinterpret_cast<std::size_t>(values[i]);
  }
  return log;
}

void define_variable(Module& module, const std::string& name, std::size_t bytes) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  Allocation made{.memory = {new std::byte[bytes]{}, std::default_delete<std::byte[]>()}, .bytes = bytes};
  const auto address = reinterpret_cast<std::uintptr_t>(made.memory.get());
  m.variables.emplace(address, std::move(made));
  module.variables.emplace(name, address);
}

void drop_variables(const Module& module) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  for (const auto& [name, address] : module.variables) m.variables.erase(address);
  for (const auto& [name, function] : module.functions) m.functions.erase(function.get());
}

bool read_line(Module& module, const std::string& line) {
  std::istringstream words(line);
  std::string kind;
  std::string name;
  words >> kind >> name;
  if (kind == "function" && find_body(name) != nullptr) {
    auto function = std::make_shared<Function>();
    function->body = find_body(name);
    function->context = current_context();
    if (!(words >> function->static_shared_bytes)) function->static_shared_bytes = 0;
    function->max_shared_bytes = (48 << 10) - function->static_shared_bytes;
    module.functions.emplace(name, std::move(function));
    return true;
  }
  std::size_t bytes = 0;
  if (kind != "variable" || !(words >> bytes) || bytes == 0) return false;
  define_variable(module, name, bytes);
  return true;
}

Result module_load(DriverModule* handle, const void* image, unsigned options, int* names, void** values) {
  const auto* const text = static_cast<const char*>(image);
  if (std::strncmp(text, kMagic, sizeof(kMagic) - 1) != 0) return kInvalidImage;
  auto module = std::make_shared<Module>();
  std::istringstream lines(text + sizeof(kMagic) - 1);
  int number = 2;
  for (std::string line; std::getline(lines, line); ++number) {
    if (read_line(*module, line)) continue;
    const ErrorLog log = error_log(options, names, values);
    std::snprintf(log.text, log.bytes, "line %d: what is '%s'?", number, line.c_str());
    drop_variables(*module);
    return kInvalidPtx;
  }
  const auto fault = module->variables.find(metrale::gpu::kDeviceFaultSymbol);
  for (const auto& [name, function] : module->functions) {
    if (fault != module->variables.end()) function->fault_variable = fault->second;
  }
  add(&Machine::modules, handle, std::move(module));
  return driver::kSuccess;
}

Result module_unload(DriverModule handle) {
  const auto module = take(&Machine::modules, handle);
  if (module == nullptr) return kInvalidHandle;
  drop_variables(*module);
  return driver::kSuccess;
}

Result module_function(DriverFunction* handle, DriverModule in, const char* name) {
  const auto module = find(&Machine::modules, in);
  if (module == nullptr) return kInvalidHandle;
  const auto found = module->functions.find(name);
  if (found == module->functions.end()) return driver::kErrorNotFound;
  add(&Machine::functions, handle, found->second);
  return driver::kSuccess;
}

Result module_global(DeviceAddress* address, std::size_t* bytes, DriverModule in, const char* name) {
  const auto module = find(&Machine::modules, in);
  if (module == nullptr) return kInvalidHandle;
  const auto found = module->variables.find(name);
  if (found == module->variables.end()) return driver::kErrorNotFound;
  const std::scoped_lock lock(machine().mutex);
  *address = found->second;
  *bytes = machine().variables.at(found->second).bytes;
  return driver::kSuccess;
}

Result function_get_attribute(int* value, int attribute, DriverFunction handle) {
  const auto function = find(&Machine::functions, handle);
  if (function == nullptr) return kInvalidHandle;
  if (attribute != driver::kFunctionStaticShared) return driver::kErrorInvalidValue;
  *value = function->static_shared_bytes;
  return driver::kSuccess;
}

Result function_set_attribute(DriverFunction handle, int attribute, int value) {
  const auto function = find(&Machine::functions, handle);
  if (function == nullptr) return kInvalidHandle;
  if (attribute != driver::kFunctionMaxDynamicShared || value < 0 ||
      value > kMaxShared - function->static_shared_bytes) {
    return driver::kErrorInvalidValue;
  }
  function->max_shared_bytes = value;
  return driver::kSuccess;
}

// Code is there from the beginning here; the call is for counting.
Result function_load(DriverFunction handle) {
  return find(&Machine::functions, handle) == nullptr ? kInvalidHandle : driver::kSuccess;
}

Result function_param_info(DriverFunction handle, std::size_t index, std::size_t* offset,
                           std::size_t* bytes) {
  const auto function = find(&Machine::functions, handle);
  if (function == nullptr) return kInvalidHandle;
  const std::vector<std::size_t>& all = function->body->param_bytes;
  if (index >= all.size()) return driver::kErrorInvalidValue;
  *offset = 0;
  for (std::size_t i = 0; i <= index; ++i) {
    *offset = (*offset + all[i] - 1) / all[i] * all[i];  // each is aligned to its size
    if (i < index) *offset += all[i];
  }
  *bytes = all[index];
  return driver::kSuccess;
}

Launch copy_params(const Function& function, void** params) {
  Launch launch{.params = {}, .fault_address = 0, .lost = function.context->lost};
  for (std::size_t i = 0; i < function.body->param_bytes.size(); ++i) {
    const auto* const from = static_cast<const std::byte*>(params[i]);
    launch.params.emplace_back(from, from + function.body->param_bytes[i]);
  }
  return launch;
}

Result launch_kernel(DriverFunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     driver::DriverStream stream, void** params, void** extra) {
  const auto function = find(&Machine::functions, handle);
  if (function == nullptr || function->context != current_context()) return kInvalidHandle;
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > kMaxThreads ||
      shared_bytes > static_cast<unsigned>(function->max_shared_bytes.load()) || extra != nullptr) {
    return driver::kErrorInvalidValue;
  }
  return submit(stream, [function, launch = copy_params(*function, params)]() mutable {
    if (function->fault_variable != 0) {
      launch.fault_address = *reinterpret_cast<const std::uint64_t*>(function->fault_variable);
    }
    function->body->run(launch);
  });
}

}  // namespace

std::vector<Entry> module_calls() {
  using enum CallKind;
  return {entry<"cuModuleLoadDataEx", kContext, module_load>(),
          entry<"cuModuleUnload", kRelease, module_unload>(),
          entry<"cuModuleGetFunction", kContext, module_function>(),
          entry<"cuModuleGetGlobal", kContext, module_global>(),
          entry<"cuFuncGetAttribute", kContext, function_get_attribute>(),
          entry<"cuFuncSetAttribute", kContext, function_set_attribute>(),
          entry<"cuFuncLoad", kContext, function_load>(),
          entry<"cuFuncGetParamInfo", kContext, function_param_info>(),
          entry<"cuLaunchKernel", kContext, launch_kernel>()};
}

}  // namespace fake_cuda
