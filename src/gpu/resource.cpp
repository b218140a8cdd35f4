// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/gpu/resource.h>

namespace metrale::gpu {

void Teardown::release_all(GpuBackend& gpu) {
  std::optional<DeviceError> first;
  while (!resources_.empty()) {
    ModelResource& resource = *resources_.back();
    resources_.pop_back();
    try {
      resource.release(gpu);
    } catch (const std::exception& error) {
      const auto* const device = dynamic_cast<const DeviceError*>(&error);
      DeviceError failure(fmt::format("release of {}", resource.label()), device ? device->code() : 0,
                          error.what(), device != nullptr && device->context_lost());
      if (first) {
        log().error("{} (after an earlier failure)", failure.what());
      } else {
        first = std::move(failure);
      }
    }
  }
  if (first) throw *first;
}

}  // namespace metrale::gpu
