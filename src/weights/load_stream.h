// SPDX-License-Identifier: Apache-2.0
// LoadStream: one load under way. Chunks go through slots of staging memory: free, being read, arrived (and
// waiting for their turn), delivered (and still used by the sink), free again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/fd.h>
#include <metrale/io/file.h>
#include <metrale/io/io_queue.h>
#include <metrale/weights/loader.h>

#include "weights/chunk_reads.h"
#include "weights/load_chunks.h"
#include "weights/load_shards.h"
#include "weights/page_maker.h"

namespace metrale::weights {

class LoadStream {
 public:
  // Throws InvalidArgument for options that make no sense.
  LoadStream(const ModelDirectory& directory, std::span<const TensorLoad> loads, PieceSink& sink,
             const LoadOptions& options);
  // Waits for what is in flight, in the queue and in the sink.
  ~LoadStream();
  LoadStream(const LoadStream&) = delete;
  LoadStream& operator=(const LoadStream&) = delete;

  LoadReport run();

 private:
  enum class SlotState : std::uint8_t { kFree, kReading, kArrived, kDelivered };
  struct Slot {
    SlotState state = SlotState::kFree;
    std::byte* memory = nullptr;
    const std::byte* bytes = nullptr;  // of the chunk's first byte
    ChunkReads parts;
    std::size_t chunk = 0;
    unsigned reads = 0;  // in flight
    bool again = false;  // a direct read was refused
  };

  // Leaves chunks their places where they can be read there.
  void settle_chunks();
  void allocate();
  void begin(std::size_t slot, std::size_t chunk);
  void read(std::size_t slot);
  void take(const io::Completion& completion);
  // Delivers what may be; false where nothing was.
  bool deliver_arrived();
  void deliver(std::size_t slot);
  // A chunk is left to be read, and the ring lets it.
  [[nodiscard]] bool may_begin() const;
  // That, and slots that would hold it are still used by the sink.
  [[nodiscard]] bool waits_for_memory() const;
  bool reclaim(bool wait);
  void wait_for_something();
  [[nodiscard]] std::optional<std::size_t> free_slot() const;

  const ModelDirectory& directory_;
  std::span<const TensorLoad> loads_;
  PieceSink& sink_;
  const LoadOptions options_;
  LoadList list_;
  LoadReport report_;
  LoadShards shards_;
  const RingShape ring_;
  std::vector<Chunk> chunks_;
  PageMaker page_maker_;
  bool reads_in_place_ = false;  // any of them
  std::uint64_t stride_ = 0;     // of slots in staging memory
  AlignedBuffer own_staging_;
  std::unique_ptr<io::IoQueue> queue_;
  io::BufferId buffer_;
  std::vector<Slot> slots_;
  std::size_t next_chunk_ = 0;  // to be read
  std::size_t next_turn_ = 0;   // to be delivered, where order is wanted
  std::size_t delivered_ = 0;   // chunks
  std::uint64_t done_bytes_ = 0;
  std::size_t reading_ = 0;  // slots
  bool finished_ = false;
  std::vector<io::Completion> completions_;
};

}  // namespace metrale::weights
