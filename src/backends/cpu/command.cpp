// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/command.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/assert.h>
#include <metrale/base/checked.h>

#include "backends/cpu/checks.h"
#include "backends/cpu/host_memory.h"
#include "backends/cpu/large_copy.h"

namespace metrale::backends::cpu {
namespace {

constexpr std::size_t kMaxInlineBytes = 4096;
// A batch that has once been very long gives its memory back.
constexpr std::size_t kMaxKeptCommands = 32768;
constexpr std::size_t kMaxKeptWords = std::size_t{1} << 20;
// From here on one thread leaves memory bandwidth unused.
constexpr std::size_t kParallelBytes = std::size_t{1} << 20;
constexpr std::size_t kParallelGrain = std::size_t{256} << 10;
// From here on a copy to the device (a load's, mostly) pushes more out of the caches than it is worth there.
constexpr std::size_t kUncachedBytes = std::size_t{256} << 10;

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

void copy_cached(std::byte* dst, const std::byte* src, std::size_t bytes) {
  std::memcpy(dst, src, bytes);
}

void copy_bytes(ThreadPool& pool, std::byte* dst, const std::byte* src, std::size_t bytes,
                bool is_from_host) {
  const auto copy = is_from_host && bytes >= kUncachedBytes ? &copy_past_caches : &copy_cached;
  if (bytes < kParallelBytes) return copy(dst, src, bytes);
  pool.parallel_for(bytes, kParallelGrain,
                    [&](std::size_t begin, std::size_t end) { copy(dst + begin, src + begin, end - begin); });
}

void fill_bytes(ThreadPool& pool, std::byte* dst, std::uint8_t value, std::size_t bytes) {
  if (bytes < kParallelBytes) {
    std::memset(dst, value, bytes);
    return;
  }
  pool.parallel_for(bytes, kParallelGrain, [&](std::size_t begin, std::size_t end) {
    std::memset(dst + begin, value, end - begin);
  });
}

void check_live(const HostMemory& memory, const std::byte* range, std::size_t bytes) {
  if constexpr (kChecks) {
    static_cast<void>(
        memory.range(DevicePtr(reinterpret_cast<std::uintptr_t>(range)), bytes, "at execution"));
  }
}

}  // namespace

std::size_t Batch::add_words(std::span<const std::byte> bytes) {
  const std::size_t at = words_.size();
  words_.resize(at + ceil_div(bytes.size(), sizeof(std::uint64_t)), 0);
  if (!bytes.empty()) std::memcpy(&words_[at], bytes.data(), bytes.size());
  return at;
}

void Batch::add_kernel(const CpuKernel& kernel, std::span<const std::byte> args) {
  commands_.emplace_back(KernelCommand{.kernel = &kernel, .args_at = add_words(args)});
}

void Batch::add_staged_copy(std::byte* dst, std::span<const std::byte> src) {
  StagedCopyCommand copy{.dst = dst, .bytes = src.size(), .words_at = 0, .large = nullptr};
  if (src.size() <= kMaxInlineBytes) {
    copy.words_at = add_words(src);
  } else {
    copy.large = std::make_unique_for_overwrite<std::byte[]>(src.size());
    std::memcpy(copy.large.get(), src.data(), src.size());
  }
  commands_.emplace_back(std::move(copy));
}

void Batch::clear() {
  commands_.clear();
  words_.clear();
  if (commands_.capacity() > kMaxKeptCommands) commands_.shrink_to_fit();
  if (words_.capacity() > kMaxKeptWords) words_.shrink_to_fit();
}

std::span<const std::uint64_t> Batch::args(const KernelCommand& command) const {
  return std::span(words_).subspan(command.args_at,
                                   ceil_div(command.kernel->entry.args_bytes, sizeof(std::uint64_t)));
}

const std::byte* Batch::source(const StagedCopyCommand& command) const {
  if (command.large != nullptr) return command.large.get();
  return std::as_bytes(std::span(words_)).data() + command.words_at * sizeof(std::uint64_t);
}

std::string describe(const Command& command) {
  return std::visit(
      Overloaded{
          [](const KernelCommand& c) {
            return fmt::format("kernel {}::{}", c.kernel->module, c.kernel->function);
          },
          [](const CopyCommand& c) {
            const char* const way = !c.to_device    ? "to the host"
                                    : c.from_device ? "on the device"
                                                    : "to the device";
            return fmt::format("copy of {} bytes {}", c.bytes, way);
          },
          [](const StagedCopyCommand& c) { return fmt::format("copy of {} bytes to the device", c.bytes); },
          [](const Copy2dCommand& c) {
            return fmt::format("2D copy of {} rows of {} bytes", c.rows, c.row_bytes);
          },
          [](const MemsetCommand& c) { return fmt::format("memset of {} bytes", c.bytes); },
          [](const RecordCommand&) { return std::string("event record"); },
          [](const WaitCommand&) { return std::string("wait for an event"); },
          [](const GraphCommand&) { return std::string("graph"); }},
      command);
}

void execute(const Command& command, const Batch& batch, ThreadPool& pool, const HostMemory& memory) {
  std::visit(Overloaded{[&](const KernelCommand& c) { c.kernel->entry.body(pool, batch.args(c).data()); },
                        [&](const CopyCommand& c) {
                          if (c.to_device) check_live(memory, c.dst, c.bytes);
                          if (c.from_device) check_live(memory, c.src, c.bytes);
                          copy_bytes(pool, c.dst, c.src, c.bytes, c.to_device && !c.from_device);
                        },
                        [&](const StagedCopyCommand& c) {
                          check_live(memory, c.dst, c.bytes);
                          copy_bytes(pool, c.dst, batch.source(c), c.bytes, true);
                        },
                        [&](const Copy2dCommand& c) {
                          check_live(memory, c.dst, c.dst_pitch_bytes * (c.rows - 1) + c.row_bytes);
                          check_live(memory, c.src, c.src_pitch_bytes * (c.rows - 1) + c.row_bytes);
                          for (std::size_t row = 0; row < c.rows; ++row) {
                            std::memcpy(c.dst + row * c.dst_pitch_bytes, c.src + row * c.src_pitch_bytes,
                                        c.row_bytes);
                          }
                        },
                        [&](const MemsetCommand& c) {
                          check_live(memory, c.dst, c.bytes);
                          fill_bytes(pool, c.dst, c.value, c.bytes);
                        },
                        // Events and graphs belong to the stream, which handles them before it comes here.
                        [](const RecordCommand&) { METRALE_ASSERT(false); },
                        [](const WaitCommand&) { METRALE_ASSERT(false); },
                        [](const GraphCommand&) { METRALE_ASSERT(false); }},
             command);
}

}  // namespace metrale::backends::cpu
