// SPDX-License-Identifier: Apache-2.0
#include "exit_codes.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <unistd.h>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::app {
namespace {

constexpr const char* kMemoryAdvice =
    ": lower what the command has of --max-in-flight, --max-batch-size, --max-seq-len and --kv-blocks, or "
    "cut the input into smaller files\n";

// Work on a device, the CPU's included, that found no memory while it ran.
bool is_device_out_of_memory(const std::exception& error) {
  constexpr int kOutOfMemoryCode = 2;  // CUDA's, and the CPU backend's
  const auto* device = dynamic_cast<const DeviceError*>(&error);
  return device != nullptr && device->code() == kOutOfMemoryCode;
}

int code_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return kUsage;
  if (dynamic_cast<const FormatError*>(&error) != nullptr) return kBadFormat;
  if (dynamic_cast<const IoError*>(&error) != nullptr) return kIoFailed;
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr) return kOutOfMemory;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return kOutOfMemory;
  if (dynamic_cast<const Unsupported*>(&error) != nullptr) return kUnsupported;
  if (is_device_out_of_memory(error)) return kOutOfMemory;
  if (dynamic_cast<const DeviceError*>(&error) != nullptr) return kDeviceFailed;
  if (dynamic_cast<const Cancelled*>(&error) != nullptr) return kInterrupted;
  return kInternalError;
}

// Without an allocation: there may be no memory for one.
void print_no_memory() {
  std::fputs("metrale: not enough host memory", stderr);
  std::fputs(kMemoryAdvice, stderr);
}

std::terminate_handler g_terminate = std::abort;  // what others had set

[[noreturn]] void on_terminate() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    print_no_memory();
    ::_exit(kOutOfMemory);
  } catch (...) {
    g_terminate();
  }
  std::abort();
}

}  // namespace

void report_on_terminate() {
  g_terminate = std::set_terminate(on_terminate);
}

int report_error(const std::exception& error) {
  const int code = code_of(error);
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    print_no_memory();
  } else if (is_device_out_of_memory(error)) {
    std::fputs(fmt::format("metrale: {}{}", error.what(), kMemoryAdvice).c_str(), stderr);
  } else if (code != kInterrupted) {
    std::fputs(fmt::format("metrale: {}\n", error.what()).c_str(), stderr);
  }
  return code;
}

}  // namespace metrale::app
