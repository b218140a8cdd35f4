// SPDX-License-Identifier: Apache-2.0
// Start, error names, devices and contexts.
#include <cstdio>
#include <map>

#include "support/fake_cuda/api.h"

namespace fake_cuda {
namespace {

struct ErrorText {
  const char* name;
  const char* text;
};

const ErrorText* error_text(Result result) {
  static const std::map<Result, ErrorText> texts{
      {0, {"CUDA_SUCCESS", "no error"}},
      {1, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {3, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
      {4, {"CUDA_ERROR_DEINITIALIZED", "driver shutting down"}},
      {100, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
      {101, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
      {200, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
      {201, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
      {218, {"CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"}},
      {400, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
      {401, {"CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"}},
      {500, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
      {600, {"CUDA_ERROR_NOT_READY", "device not ready"}},
      {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
      {709, {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"}},
      {802, {"CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"}},
      {900, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
      {901, {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error"}},
      {902, {"CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of two captures"}},
      {903, {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the stream it began"}},
      {904, {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"}},
      {905, {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work"}},
      {907, {"CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capture"}},
  };
  const auto found = texts.find(result);
  return found == texts.end() ? nullptr : &found->second;
}

Device* device_of(driver::Device device) {
  return device >= 0 && device < kDevices ? &machine().devices[static_cast<std::size_t>(device)] : nullptr;
}

Result init(unsigned) {
  return driver::kSuccess;
}

Result driver_version(int* version) {
  *version = 13000;
  return driver::kSuccess;
}

Result error_name(Result result, const char** name) {
  const ErrorText* const found = error_text(result);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? driver::kErrorInvalidValue : driver::kSuccess;
}

Result error_string(Result result, const char** text) {
  const ErrorText* const found = error_text(result);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? driver::kErrorInvalidValue : driver::kSuccess;
}

Result device_count(int* count) {
  const std::scoped_lock lock(machine().mutex);
  *count = machine().device_count;
  return driver::kSuccess;
}

Result device_get(driver::Device* device, int ordinal) {
  const std::scoped_lock lock(machine().mutex);
  if (ordinal < 0 || ordinal >= machine().device_count) return 101;
  *device = ordinal;
  return driver::kSuccess;
}

Result device_name(char* name, int length, driver::Device device) {
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU %d", device);
  return driver::kSuccess;
}

Result device_attribute(int* value, int attribute, driver::Device device) {
  const std::scoped_lock lock(machine().mutex);
  const Device* const found = device_of(device);
  if (found == nullptr) return 101;
  switch (attribute) {
    case driver::kAttributeMultiprocessors:
      *value = 4;
      return driver::kSuccess;
    case driver::kAttributeIntegrated:
      *value = found->is_integrated ? 1 : 0;
      return driver::kSuccess;
    case driver::kAttributeComputeMajor:
      *value = found->compute_major;
      return driver::kSuccess;
    case driver::kAttributeComputeMinor:
      *value = found->compute_minor;
      return driver::kSuccess;
    case driver::kAttributeMaxSharedPerBlockOptin:
      *value = 227 << 10;
      return driver::kSuccess;
    default:
      return driver::kErrorInvalidValue;
  }
}

Result device_total_memory(std::size_t* bytes, driver::Device) {
  *bytes = kTotalBytes;
  return driver::kSuccess;
}

Result primary_retain(driver::Context* context, driver::Device device) {
  const std::scoped_lock lock(machine().mutex);
  Device* const found = device_of(device);
  if (found == nullptr) return 101;
  ++found->context.references;
  *context = reinterpret_cast<driver::Context>(&found->context);
  return driver::kSuccess;
}

Result primary_release(driver::Device device) {
  const std::scoped_lock lock(machine().mutex);
  Device* const found = device_of(device);
  if (found == nullptr) return 101;
  if (found->context.references == 0) return driver::kErrorInvalidContext;
  --found->context.references;
  return driver::kSuccess;
}

Result context_current(driver::Context* context) {
  *context = reinterpret_cast<driver::Context>(current_context());
  return driver::kSuccess;
}

Result context_set_current(driver::Context context) {
  current_context() = reinterpret_cast<Context*>(context);
  return driver::kSuccess;
}

}  // namespace

std::vector<Entry> device_calls() {
  using enum CallKind;
  return {entry<"cuInit", kGlobal, init>(),
          entry<"cuDriverGetVersion", kGlobal, driver_version>(),
          entry<"cuGetErrorName", kText, error_name>(),
          entry<"cuGetErrorString", kText, error_string>(),
          entry<"cuDeviceGetCount", kGlobal, device_count>(),
          entry<"cuDeviceGet", kGlobal, device_get>(),
          entry<"cuDeviceGetName", kGlobal, device_name>(),
          entry<"cuDeviceGetAttribute", kGlobal, device_attribute>(),
          entry<"cuDeviceTotalMem", kGlobal, device_total_memory>(),
          entry<"cuDevicePrimaryCtxRetain", kGlobal, primary_retain>(),
          entry<"cuDevicePrimaryCtxRelease", kGlobalRelease, primary_release>(),
          entry<"cuCtxGetCurrent", kGlobal, context_current>(),
          entry<"cuCtxSetCurrent", kGlobal, context_set_current>()};
}

}  // namespace fake_cuda
