// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/driver.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace metrale::backends::cuda {
namespace {

// Names resolve to the interface that CUDA 12.0 has under them; later drivers keep it.
constexpr int kInterfaceVersion = 12000;

using GetProcAddress = Result (*)(const char* symbol, void** function, int version, std::uint64_t flags,
                                  int* status);

// Of calls that are newer than that, and that the backend does without.
constexpr int kNewerInterfaceVersion = 12040;

// Resolves names and remembers the first one that is missing.
class Resolver {
 public:
  explicit Resolver(GetProcAddress get) : get_(get) {}

  template <class Function>
  void operator()(const char* name, Function& function) {
    void* found = nullptr;
    int status = 0;
    const Result result = get_(name, &found, kInterfaceVersion, 0, &status);
    if ((result != kSuccess || found == nullptr) && missing_.empty()) missing_ = name;
    function = reinterpret_cast<Function>(found);
  }
  // Null where the driver does not have it.
  template <class Function>
  void optional(const char* name, Function& function) {
    void* found = nullptr;
    int status = 0;
    const Result result = get_(name, &found, kNewerInterfaceVersion, 0, &status);
    function = result == kSuccess ? reinterpret_cast<Function>(found) : nullptr;
  }
  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  GetProcAddress get_;
  std::string missing_;
};

void resolve_devices_and_memory(Resolver& find, Driver& d) {
  find("cuInit", d.init);
  find("cuDriverGetVersion", d.driver_version);
  find("cuGetErrorName", d.error_name);
  find("cuGetErrorString", d.error_string);
  find("cuDeviceGetCount", d.device_count);
  find("cuDeviceGet", d.device_get);
  find("cuDeviceGetName", d.device_name);
  find("cuDeviceGetAttribute", d.device_attribute);
  find("cuDeviceTotalMem", d.device_total_memory);
  find("cuDevicePrimaryCtxRetain", d.primary_retain);
  find("cuDevicePrimaryCtxRelease", d.primary_release);
  find("cuCtxGetCurrent", d.context_current);
  find("cuCtxSetCurrent", d.context_set_current);
  find("cuMemGetInfo", d.memory_info);
  find("cuMemAlloc", d.mem_alloc);
  find("cuMemFree", d.mem_free);
  find("cuMemHostAlloc", d.host_alloc);
  find("cuMemFreeHost", d.host_free);
  find("cuMemHostRegister", d.host_register);
  find("cuMemHostUnregister", d.host_unregister);
  find("cuMemHostGetDevicePointer", d.host_device_pointer);
  find("cuPointerGetAttribute", d.pointer_attribute);
}

void resolve_work(Resolver& find, Driver& d) {
  find("cuMemcpyAsync", d.copy_async);
  find("cuMemcpyHtoDAsync", d.copy_h2d_async);
  find("cuMemcpyDtoHAsync", d.copy_d2h_async);
  find("cuMemcpy2DAsync", d.copy_2d_async);
  find("cuMemsetD8Async", d.memset_async);
  find("cuStreamCreate", d.stream_create);
  find("cuStreamDestroy", d.stream_destroy);
  find("cuStreamSynchronize", d.stream_synchronize);
  find("cuStreamWaitEvent", d.stream_wait_event);
  find("cuStreamBeginCapture", d.stream_begin_capture);
  find("cuStreamEndCapture", d.stream_end_capture);
  find("cuLaunchHostFunc", d.launch_host_function);
  find("cuEventCreate", d.event_create);
  find("cuEventDestroy", d.event_destroy);
  find("cuEventRecord", d.event_record);
  find("cuEventQuery", d.event_query);
  find("cuEventSynchronize", d.event_synchronize);
  find("cuGraphInstantiateWithFlags", d.graph_instantiate);
  find("cuGraphDestroy", d.graph_destroy);
  find("cuGraphExecDestroy", d.graph_exec_destroy);
  find("cuGraphLaunch", d.graph_launch);
  find("cuModuleLoadDataEx", d.module_load);
  find("cuModuleUnload", d.module_unload);
  find("cuModuleGetFunction", d.module_function);
  find("cuModuleGetGlobal", d.module_global);
  find("cuFuncGetAttribute", d.function_get_attribute);
  find("cuFuncSetAttribute", d.function_set_attribute);
  find("cuLaunchKernel", d.launch_kernel);
  find.optional("cuFuncLoad", d.function_load);
  find.optional("cuFuncGetParamInfo", d.function_param_info);
}

GetProcAddress find_get_proc_address(void* library) {
  void* found = ::dlsym(library, "cuGetProcAddress_v2");
  return reinterpret_cast<GetProcAddress>(found);
}

}  // namespace

std::string Driver::describe(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (error_string(result, &text) != kSuccess || text == nullptr) text = "the driver does not know it";
  return fmt::format("{} ({}): {}", name, result, text);
}

LoadedDriver load_driver(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    return {nullptr, fmt::format("no NVIDIA driver: {}", reason != nullptr ? reason : library)};
  }
  const std::shared_ptr<void> keep(handle, [](void* open) { ::dlclose(open); });
  const GetProcAddress get = find_get_proc_address(handle);
  if (get == nullptr) {
    return {nullptr, fmt::format("the NVIDIA driver ({}) is older than CUDA 12: update it", library)};
  }
  // The deleter holds the library, so that no call outlives it.
  const std::shared_ptr<Driver> driver(new Driver{}, [keep](Driver* d) { delete d; });
  Resolver find(get);
  resolve_devices_and_memory(find, *driver);
  resolve_work(find, *driver);
  if (!find.missing().empty()) {
    return {nullptr, fmt::format("the NVIDIA driver ({}) lacks {}: it is older than CUDA 12; update it",
                                 library, find.missing())};
  }
  const Result result = driver->init(0);
  if (result != kSuccess) {
    return {nullptr,
            fmt::format("the NVIDIA driver does not start: cuInit gave {}", driver->describe(result))};
  }
  return {driver, {}};
}

bool means_context_lost(Result result) {
  switch (result) {
    case kErrorDeinitialized:
    case kErrorInvalidContext:
    case 214:  // uncorrectable ECC error
    case 220:  // NVLink
    case 226:  // contained error
    case 700:  // illegal address
    case 702:  // launch time-out
    case kErrorContextDestroyed:
    case 710:  // assert
    case 714:  // stack
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failed
    case 721:  // tensor memory leak
    case 999:  // unknown
      return true;
    default:
      return false;
  }
}

bool is_harmless_at_teardown(Result result) {
  return result == kSuccess || result == kErrorDeinitialized || result == kErrorInvalidContext ||
         result == kErrorContextDestroyed;
}

}  // namespace metrale::backends::cuda
