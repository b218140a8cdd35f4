// SPDX-License-Identifier: Apache-2.0
// What a stream of the CPU backend can be told to do, and the batch that holds such commands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <metrale/base/device_ptr.h>
#include <metrale/base/thread_pool.h>
#include <metrale/gpu/cpu_kernel_table.h>

namespace metrale::backends::cpu {

class EventRecord;
class CpuGraph;
class HostMemory;

// A kernel of the injected table with its name for messages; its address is its identity.
struct CpuKernel {
  std::string module;
  std::string function;
  gpu::CpuKernelTable::Entry entry;
};

struct KernelCommand {
  const CpuKernel* kernel = nullptr;
  std::size_t args_at = 0;  // index into Batch::words
};
struct CopyCommand {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::size_t bytes = 0;
  bool to_device = false;
  bool from_device = false;
};
// The source was copied at the call: into the batch when small, else into memory of its own.
struct StagedCopyCommand {
  std::byte* dst = nullptr;
  std::size_t bytes = 0;
  std::size_t words_at = 0;
  std::unique_ptr<std::byte[]> large;
};
struct Copy2dCommand {
  std::byte* dst = nullptr;
  std::size_t dst_pitch_bytes = 0;
  const std::byte* src = nullptr;
  std::size_t src_pitch_bytes = 0;
  std::size_t row_bytes = 0;
  std::size_t rows = 0;
};
struct MemsetCommand {
  std::byte* dst = nullptr;
  std::size_t bytes = 0;
  std::uint8_t value = 0;
};
struct RecordCommand {
  std::shared_ptr<EventRecord> record;
};
struct WaitCommand {
  std::shared_ptr<EventRecord> record;
};
struct GraphCommand {
  std::shared_ptr<CpuGraph> graph;
};

using Command = std::variant<KernelCommand, CopyCommand, StagedCopyCommand, Copy2dCommand, MemsetCommand,
                             RecordCommand, WaitCommand, GraphCommand>;

// Commands in order, with their inline bytes. It keeps its capacity when cleared, so that a stream in its
// stride allocates nothing.
class Batch {
 public:
  void add_kernel(const CpuKernel& kernel, std::span<const std::byte> args);
  void add_staged_copy(std::byte* dst, std::span<const std::byte> src);
  void add(Command command) { commands_.push_back(std::move(command)); }
  void clear();

  [[nodiscard]] bool empty() const { return commands_.empty(); }
  [[nodiscard]] std::vector<Command>& commands() { return commands_; }
  [[nodiscard]] const std::vector<Command>& commands() const { return commands_; }
  // The arguments of a kernel command of this batch.
  [[nodiscard]] std::span<const std::uint64_t> args(const KernelCommand& command) const;
  [[nodiscard]] const std::byte* source(const StagedCopyCommand& command) const;

 private:
  std::size_t add_words(std::span<const std::byte> bytes);

  std::vector<Command> commands_;
  std::vector<std::uint64_t> words_;
};

// "kernel norm::rms_norm", "copy of 64 bytes to the device", …
[[nodiscard]] std::string describe(const Command& command);

// Runs one kernel, copy or memset. Throws what the kernel throws; in checked builds InvalidArgument where a
// copy or memset touches memory that has been freed since it was enqueued.
void execute(const Command& command, const Batch& batch, ThreadPool& pool, const HostMemory& memory);

}  // namespace metrale::backends::cpu
