// SPDX-License-Identifier: Apache-2.0
#include <metrale/base/log.h>
#include <metrale/gpu/stream.h>

namespace metrale::gpu {

template <class Ref, void (GpuBackend::*Destroy)(Ref)>
void OwnedHandle<Ref, Destroy>::reset() noexcept {
  GpuBackend* const gpu = std::exchange(gpu_, nullptr);
  const Ref ref = std::exchange(ref_, Ref{});
  if (gpu == nullptr || ref.is_null()) return;
  try {
    (gpu->*Destroy)(ref);
  } catch (const std::exception& error) {
    log().error("destroying a handle of backend {}: {}", gpu->name(), error.what());
  }
}

template class OwnedHandle<StreamRef, &GpuBackend::destroy_stream>;
template class OwnedHandle<EventRef, &GpuBackend::destroy_event>;
template class OwnedHandle<GraphRef, &GpuBackend::destroy_graph>;

}  // namespace metrale::gpu
