// SPDX-License-Identifier: Apache-2.0
// ModelResource: something that owns device memory and can be told to let go. Teardown lets go of many, in
// reverse order of registration, and reports the first failure by name.
#pragma once

#include <string_view>
#include <vector>

namespace metrale::gpu {

class GpuBackend;

class ModelResource {
 public:
  ModelResource() = default;
  virtual ~ModelResource() = default;
  ModelResource(const ModelResource&) = delete;
  ModelResource& operator=(const ModelResource&) = delete;
  ModelResource(ModelResource&&) = delete;
  ModelResource& operator=(ModelResource&&) = delete;

  // For error messages: "kv cache", "buffer arena", …
  [[nodiscard]] std::string_view label() const { return do_label(); }
  // Blocking, idempotent. Releases everything it owns even after a failure; then throws the first one.
  void release(GpuBackend& gpu) { do_release(gpu); }

 private:
  [[nodiscard]] virtual std::string_view do_label() const = 0;
  virtual void do_release(GpuBackend& gpu) = 0;
};

class Teardown {
 public:
  // The resource outlives the teardown.
  void add(ModelResource& resource) { resources_.push_back(&resource); }
  // Releases all, last registered first, whatever fails; then throws DeviceError naming the label of the
  // first failure. Idempotent.
  void release_all(GpuBackend& gpu);

 private:
  std::vector<ModelResource*> resources_;
};

}  // namespace metrale::gpu
