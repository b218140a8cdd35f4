// SPDX-License-Identifier: Apache-2.0
// HandleTable: the objects behind a backend's handles. A handle is a slot and a generation, so one whose
// object is gone is told from one that took its place. Thread-safe; for implementations of GpuBackend.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/gpu/types.h>

namespace metrale::gpu {

template <class Ref, class Object>
class HandleTable {
 public:
  // `kind` names the handles in messages: "stream", "event", "graph".
  explicit HandleTable(const char* kind) : kind_(kind) {}

  // `make(ref)` returns the shared_ptr of the object that `ref` will name.
  template <class Make>
  [[nodiscard]] Ref add(Make&& make) {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) {
      free_.reserve(slots_.size() + 1);  // so that remove() never allocates
      slots_.emplace_back();
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    }
    const std::uint32_t slot = free_.back();
    slots_[slot - 1].object = make(ref_of(slot));
    free_.pop_back();
    return ref_of(slot);
  }

  // Throws InvalidArgument where `ref` names no living object.
  [[nodiscard]] std::shared_ptr<Object> find(Ref ref) const {
    const std::scoped_lock lock(mutex_);
    return slots_[index_of(ref)].object;
  }

  // As find; the handle is dead afterwards.
  std::shared_ptr<Object> remove(Ref ref) {
    const std::scoped_lock lock(mutex_);
    Slot& slot = slots_[index_of(ref)];
    ++slot.generation;
    free_.push_back(static_cast<std::uint32_t>(&slot - slots_.data() + 1));
    return std::exchange(slot.object, nullptr);
  }

  [[nodiscard]] std::vector<std::shared_ptr<Object>> all() const {
    const std::scoped_lock lock(mutex_);
    std::vector<std::shared_ptr<Object>> living;
    for (const Slot& slot : slots_) {
      if (slot.object != nullptr) living.push_back(slot.object);
    }
    return living;
  }

 private:
  struct Slot {
    std::uint32_t generation = 1;
    std::shared_ptr<Object> object;
  };

  [[nodiscard]] Ref ref_of(std::uint32_t slot) const {
    return Ref(std::uint64_t{slots_[slot - 1].generation} << 32 | slot);
  }
  [[nodiscard]] std::size_t index_of(Ref ref) const {
    const auto slot = static_cast<std::uint32_t>(ref.value());
    if (slot == 0 || slot > slots_.size() || slots_[slot - 1].object == nullptr || ref_of(slot) != ref) {
      throw InvalidArgument(
          fmt::format("no such {}: handle {:#x} was never given out or was destroyed", kind_, ref.value()));
    }
    return slot - 1;
  }

  const char* kind_;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace metrale::gpu
