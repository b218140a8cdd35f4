// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/host.h"

#include <array>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>

namespace metrale::backends {
namespace {

using cuda::Driver;

int attribute(const CudaHost& host, cuda::Device device, int which) {
  int value = 0;
  host.check(host.driver().device_attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

CudaDevice describe_device(const Driver& driver, int ordinal) {
  CudaDevice found{.ordinal = ordinal, .name = {}};
  cuda::Device device = 0;
  if (driver.device_get(&device, ordinal) != cuda::kSuccess) return found;
  std::array<char, 256> name{};
  if (driver.device_name(name.data(), static_cast<int>(name.size()) - 1, device) == cuda::kSuccess) {
    found.name = name.data();
  }
  int sms = 0;
  int integrated = 0;
  std::size_t total = 0;
  driver.device_attribute(&found.compute_major, cuda::kAttributeComputeMajor, device);
  driver.device_attribute(&found.compute_minor, cuda::kAttributeComputeMinor, device);
  driver.device_attribute(&sms, cuda::kAttributeMultiprocessors, device);
  driver.device_attribute(&integrated, cuda::kAttributeIntegrated, device);
  driver.device_total_memory(&total, device);
  found.sm_count = static_cast<std::uint32_t>(sms);
  found.integrated = integrated != 0;
  found.total_memory_bytes = total;
  return found;
}

// The hosts that are in use, so that all users of a device share one: its default stream, and what is known
// of its context. It owns none.
class OpenHosts {
 public:
  // Null: nobody uses one.
  std::shared_ptr<CudaHost> find(const std::string& driver_library, int ordinal) {
    const std::scoped_lock lock(mutex_);
    return hosts_[{driver_library, ordinal}].lock();
  }
  std::shared_ptr<CudaHost> find_or_open(const std::string& driver_library,
                                         const std::shared_ptr<const Driver>& driver, int ordinal) {
    const std::scoped_lock lock(mutex_);
    std::weak_ptr<CudaHost>& known = hosts_[{driver_library, ordinal}];
    if (auto host = known.lock()) return host;
    auto host = std::make_shared<CudaHost>(driver, ordinal);
    known = host;
    return host;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::weak_ptr<CudaHost>> hosts_;
};

OpenHosts& open_hosts() {
  static OpenHosts hosts;
  return hosts;
}

// 0, and a warning, where the device does not open.
std::uint64_t free_bytes_of(const std::string& driver_library, const std::shared_ptr<const Driver>& driver,
                            int ordinal) {
  try {
    return open_hosts().find_or_open(driver_library, driver, ordinal)->free_bytes();
  } catch (const DeviceError& error) {
    log().warn("cuda:{}: {}", ordinal, error.what());
    return 0;
  }
}

}  // namespace

CudaHost::CudaHost(std::shared_ptr<const Driver> driver, int ordinal) : driver_(std::move(driver)) {
  facts_.ordinal = ordinal;  // first: errors name it
  check(driver_->device_get(&device_, ordinal), "cuDeviceGet");
  check(driver_->primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  try {
    facts_.compute_major = attribute(*this, device_, cuda::kAttributeComputeMajor);
    facts_.compute_minor = attribute(*this, device_, cuda::kAttributeComputeMinor);
    facts_.sm_count = static_cast<std::uint32_t>(attribute(*this, device_, cuda::kAttributeMultiprocessors));
    facts_.max_shared_bytes =
        static_cast<std::uint32_t>(attribute(*this, device_, cuda::kAttributeMaxSharedPerBlockOptin));
    integrated_ = attribute(*this, device_, cuda::kAttributeIntegrated) != 0;
    std::size_t total = 0;
    check(driver_->device_total_memory(&total, device_), "cuDeviceTotalMem");
    total_bytes_ = total;
    const cuda::ContextScope scope(*this, cuda::ContextScope::OrThrow{});
    check(driver_->stream_create(&default_stream_, cuda::kStreamNonBlocking), "cuStreamCreate");
  } catch (...) {
    driver_->primary_release(device_);
    throw;
  }
}

CudaHost::~CudaHost() {
  {
    const cuda::ContextScope scope(*this);
    tear_down([&] { return driver_->stream_destroy(default_stream_); }, "cuStreamDestroy");
  }
  check_quietly(driver_->primary_release(device_), "cuDevicePrimaryCtxRelease");
}

std::uint64_t CudaHost::free_bytes() const {
  const cuda::ContextScope scope(*this, cuda::ContextScope::OrThrow{});
  std::size_t free = 0;
  std::size_t total = 0;
  check(driver_->memory_info(&free, &total), "cuMemGetInfo");
  return free;
}

void CudaHost::expect_context() const {
  if (!context_lost()) [[likely]]
    return;
  throw DeviceError("a call to the CUDA backend", cuda::kErrorContextDestroyed,
                    fmt::format("the context of cuda:{} was lost before; end the process", facts_.ordinal),
                    true);
}

void CudaHost::fail(cuda::Result result, std::string_view call) const {
  const bool lost = cuda::means_context_lost(result);
  if (lost) context_lost_.store(true, std::memory_order_relaxed);
  throw DeviceError(call, result,
                    fmt::format("device {}: {}{}", facts_.ordinal, driver_->describe(result),
                                lost ? "; the device's context is lost: end the process" : ""),
                    lost);
}

void CudaHost::check_quietly(cuda::Result result, std::string_view call) const noexcept {
  if (cuda::is_harmless_at_teardown(result) || context_lost()) return;
  if (cuda::means_context_lost(result)) context_lost_.store(true, std::memory_order_relaxed);
  try {
    log().error("{}: {}", call, driver_->describe(result));
  } catch (const std::exception&) {
    return;  // the log failed; teardown goes on
  }
}

CudaDevices list_cuda_devices(const std::string& driver_library, bool with_free_memory) {
  const cuda::LoadedDriver loaded = cuda::load_driver(driver_library);
  CudaDevices found;
  if (loaded.driver == nullptr) {
    found.why_none = loaded.why_none;
    return found;
  }
  const Driver& driver = *loaded.driver;
  driver.driver_version(&found.driver_version);
  int count = 0;
  const cuda::Result result = driver.device_count(&count);
  if (result != cuda::kSuccess || count == 0) {
    found.why_none = result == cuda::kSuccess || result == cuda::kErrorNoDevice
                         ? "the NVIDIA driver sees no device"
                         : fmt::format("cuDeviceGetCount gave {}", driver.describe(result));
    return found;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CudaDevice device = describe_device(driver, ordinal);
    if (with_free_memory) {
      device.free_memory_bytes = free_bytes_of(driver_library, loaded.driver, ordinal);
    }
    found.devices.push_back(std::move(device));
  }
  return found;
}

std::shared_ptr<CudaHost> open_cuda_host(int ordinal, const std::string& driver_library) {
  if (auto host = open_hosts().find(driver_library, ordinal)) return host;
  const cuda::LoadedDriver loaded = cuda::load_driver(driver_library);
  if (loaded.driver == nullptr) throw Unsupported("this machine", "CUDA: " + loaded.why_none);
  int count = 0;
  const cuda::Result result = loaded.driver->device_count(&count);
  if (result != cuda::kSuccess && result != cuda::kErrorNoDevice) {
    throw DeviceError("cuDeviceGetCount", result, loaded.driver->describe(result),
                      cuda::means_context_lost(result));
  }
  if (ordinal < 0 || ordinal >= count) {
    throw Unsupported("this machine",
                      count == 0 ? "CUDA: the NVIDIA driver sees no device"
                                 : fmt::format("cuda:{}: it has cuda:0 to cuda:{}", ordinal, count - 1));
  }
  return open_hosts().find_or_open(driver_library, loaded.driver, ordinal);
}

}  // namespace metrale::backends
