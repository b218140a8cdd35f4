// SPDX-License-Identifier: Apache-2.0
// Driver: the calls of the CUDA driver that this backend makes, found in the driver's library at run time.
// The declarations follow the driver's stable binary interface; no header of the toolkit is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace metrale::backends::cuda {

using Result = int;
using Device = int;
using DeviceAddress = unsigned long long;
using Context = struct ContextTag*;
using DriverStream = struct StreamTag*;
using DriverEvent = struct EventTag*;
using DriverGraph = struct GraphTag*;
using DriverGraphExec = struct GraphExecTag*;
using DriverModule = struct ModuleTag*;
using DriverFunction = struct FunctionTag*;

// Values of the driver's enumerations that are used here.
inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorOutOfMemory = 2;
inline constexpr Result kErrorDeinitialized = 4;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorInvalidContext = 201;
inline constexpr Result kErrorNotFound = 500;
inline constexpr Result kErrorNotReady = 600;
inline constexpr Result kErrorContextDestroyed = 709;

inline constexpr int kAttributeMaxSharedPerBlockOptin = 97;
inline constexpr int kAttributeIntegrated = 18;
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeComputeMajor = 75;
inline constexpr int kAttributeComputeMinor = 76;
inline constexpr int kPointerMemoryType = 2;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostPortable = 1;
inline constexpr unsigned kHostDeviceMap = 2;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kFunctionStaticShared = 1;
inline constexpr int kFunctionMaxDynamicShared = 8;
inline constexpr int kJitErrorLogBuffer = 5;
inline constexpr int kJitErrorLogBufferBytes = 6;
inline constexpr unsigned kMemoryTypeDevice = 2;

struct Copy2d {
  std::size_t src_x_bytes = 0;
  std::size_t src_y = 0;
  unsigned src_memory_type = kMemoryTypeDevice;
  const void* src_host = nullptr;
  DeviceAddress src_device = 0;
  void* src_array = nullptr;
  std::size_t src_pitch = 0;
  std::size_t dst_x_bytes = 0;
  std::size_t dst_y = 0;
  unsigned dst_memory_type = kMemoryTypeDevice;
  void* dst_host = nullptr;
  DeviceAddress dst_device = 0;
  void* dst_array = nullptr;
  std::size_t dst_pitch = 0;
  std::size_t width_bytes = 0;
  std::size_t height = 0;
};
static_assert(sizeof(Copy2d) == 128);

using HostFunction = void (*)(void* data);

struct Driver {
  Result (*init)(unsigned flags);
  Result (*driver_version)(int* version);
  Result (*error_name)(Result result, const char** name);
  Result (*error_string)(Result result, const char** text);
  Result (*device_count)(int* count);
  Result (*device_get)(Device* device, int ordinal);
  Result (*device_name)(char* name, int length, Device device);
  Result (*device_attribute)(int* value, int attribute, Device device);
  Result (*device_total_memory)(std::size_t* bytes, Device device);
  Result (*primary_retain)(Context* context, Device device);
  Result (*primary_release)(Device device);
  Result (*context_current)(Context* context);
  Result (*context_set_current)(Context context);
  Result (*memory_info)(std::size_t* free, std::size_t* total);
  Result (*mem_alloc)(DeviceAddress* address, std::size_t bytes);
  Result (*mem_free)(DeviceAddress address);
  Result (*host_alloc)(void** host, std::size_t bytes, unsigned flags);
  Result (*host_free)(void* host);
  Result (*host_register)(void* host, std::size_t bytes, unsigned flags);
  Result (*host_unregister)(void* host);
  Result (*host_device_pointer)(DeviceAddress* address, void* host, unsigned flags);
  Result (*pointer_attribute)(void* data, int attribute, DeviceAddress address);
  Result (*copy_async)(DeviceAddress dst, DeviceAddress src, std::size_t bytes, DriverStream stream);
  Result (*copy_h2d_async)(DeviceAddress dst, const void* src, std::size_t bytes, DriverStream stream);
  Result (*copy_d2h_async)(void* dst, DeviceAddress src, std::size_t bytes, DriverStream stream);
  Result (*copy_2d_async)(const Copy2d* copy, DriverStream stream);
  Result (*memset_async)(DeviceAddress dst, unsigned char value, std::size_t bytes, DriverStream stream);
  Result (*stream_create)(DriverStream* stream, unsigned flags);
  Result (*stream_destroy)(DriverStream stream);
  Result (*stream_synchronize)(DriverStream stream);
  Result (*stream_wait_event)(DriverStream stream, DriverEvent event, unsigned flags);
  Result (*stream_begin_capture)(DriverStream stream, int mode);
  Result (*stream_end_capture)(DriverStream stream, DriverGraph* graph);
  Result (*launch_host_function)(DriverStream stream, HostFunction function, void* data);
  Result (*event_create)(DriverEvent* event, unsigned flags);
  Result (*event_destroy)(DriverEvent event);
  Result (*event_record)(DriverEvent event, DriverStream stream);
  Result (*event_query)(DriverEvent event);
  Result (*event_synchronize)(DriverEvent event);
  Result (*graph_instantiate)(DriverGraphExec* exec, DriverGraph graph, unsigned long long flags);
  Result (*graph_destroy)(DriverGraph graph);
  Result (*graph_exec_destroy)(DriverGraphExec exec);
  Result (*graph_launch)(DriverGraphExec exec, DriverStream stream);
  Result (*module_load)(DriverModule* module, const void* image, unsigned options, int* option_names,
                        void** option_values);
  Result (*module_unload)(DriverModule module);
  Result (*module_function)(DriverFunction* function, DriverModule module, const char* name);
  Result (*module_global)(DeviceAddress* address, std::size_t* bytes, DriverModule module, const char* name);
  Result (*function_get_attribute)(int* value, int attribute, DriverFunction function);
  Result (*function_set_attribute)(DriverFunction function, int attribute, int value);
  Result (*launch_kernel)(DriverFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                          DriverStream stream, void** params, void** extra);

  // Null in drivers before CUDA 12.4.
  Result (*function_load)(DriverFunction function);
  // Of one parameter; kErrorInvalidValue beyond the last.
  Result (*function_param_info)(DriverFunction function, std::size_t index, std::size_t* offset,
                                std::size_t* bytes);

  // "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered".
  [[nodiscard]] std::string describe(Result result) const;
};

// A driver, initialised, or why there is none.
struct LoadedDriver {
  std::shared_ptr<const Driver> driver;  // keeps the library open
  std::string why_none;
};
[[nodiscard]] LoadedDriver load_driver(const std::string& library);

// After such a result the context and everything in it are gone.
[[nodiscard]] bool means_context_lost(Result result);
// Results of freeing that only say that the context went first.
[[nodiscard]] bool is_harmless_at_teardown(Result result);

}  // namespace metrale::backends::cuda
