// SPDX-License-Identifier: Apache-2.0
// The state of an IoQueue: slots of requests, tables of files and buffers, and the way of a request through
// them: prepared -> ready -> in the engine (-> ready again) -> done -> delivered.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <metrale/base/ring_queue.h>
#include <metrale/io/io_queue.h>

#include "io/id_table.h"
#include "io/progress.h"

namespace metrale::io {

struct IoQueue::State {
  explicit State(std::unique_ptr<IoEngine> engine_in);

  struct FileEntry {
    std::string path;
    int fd = -1;
    bool is_writable = false;
    bool with_engine = false;
    DirectAlignment alignment{.memory_bytes = 1, .offset_bytes = 1};
    std::uint32_t users = 0;
  };
  struct BufferEntry {
    MemoryKind memory = MemoryKind::kHost;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    bool with_engine = false;
    std::uint32_t users = 0;
  };
  enum class Stage : std::uint8_t { kFree, kPrepared, kReady, kInEngine, kDone };
  struct Slot {
    IoRequest request;
    Progress progress;
    IoStatus status = IoStatus::kComplete;
    Stage stage = Stage::kFree;
    std::uint32_t granule = 1;
    std::uint32_t attempt = 0;     // counts the answers taken; an answer to an earlier one is refused
    std::uint32_t generation = 0;  // the attempt at which the request was prepared
  };

  [[nodiscard]] FileEntry& file(FileId id);
  [[nodiscard]] BufferEntry& buffer(BufferId id);
  [[nodiscard]] BufferId add_buffer(const BufferEntry& entry);
  // Throws for what prepare refuses.
  void check(const IoRequest& request, const FileEntry& file);
  [[nodiscard]] std::uint32_t take_slot(const IoRequest& request, FileEntry& file);
  // Back to the free ones, and its file and buffer have one user less.
  void free_slot(std::uint32_t index) noexcept;

  [[nodiscard]] RawTransfer raw(std::uint32_t index);
  // Offers what is ready to the engine until it takes no more.
  void push_ready();
  // One look into the engine, waiting until `deadline` for something to be there.
  void pull(IoTime deadline);
  void take_answer(const RawCompletion& answer);
  void finish(std::uint32_t index, IoStatus status);
  [[nodiscard]] std::size_t deliver(std::span<Completion> out);
  [[nodiscard]] bool is_idle() const { return in_engine == 0 && ready.empty(); }

  std::unique_ptr<IoEngine> engine;
  std::vector<Slot> slots;
  std::vector<std::uint32_t> free;
  std::vector<std::uint32_t> prepared;
  RingQueue<std::uint32_t> ready;
  RingQueue<std::uint32_t> done;
  std::vector<RawTransfer> outgoing;
  std::vector<RawCompletion> incoming;
  IdTable<FileEntry> files;
  IdTable<BufferEntry> buffers;
  std::size_t in_engine = 0;
  std::uint32_t refusals = 0;  // times in a row that an empty engine took nothing
  bool is_draining = false;
  QueueStats stats;
};

}  // namespace metrale::io
