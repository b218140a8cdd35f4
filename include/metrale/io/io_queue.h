// SPDX-License-Identifier: Apache-2.0
// IoQueue: many reads and writes in flight, prepared, submitted and polled. A completion is the exact length,
// the end of the file, or an error: short transfers are continued and interruptions retried by the queue, at
// the alignment that direct I/O asks for. Answers of the engine that belong to nothing in flight are refused
// and counted.
//
// Threads: one at a time, any thread; several queues run in parallel. Memory, File and ids that a request
// names stay valid until its completion is delivered, the request is released, or drain() returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include <metrale/base/device_ptr.h>
#include <metrale/base/error.h>
#include <metrale/base/ids.h>
#include <metrale/io/file.h>
#include <metrale/io/io_engine.h>

namespace metrale::io {

// 0 is none. An id is never given twice by one queue.
using BufferId = Id<struct IoBufferTag, std::uint64_t>;
using FileId = Id<struct IoFileTag, std::uint64_t>;
using RequestId = Id<struct IoRequestTag, std::uint64_t>;

struct IoRequest {
  IoKind kind = IoKind::kRead;
  FileId file;
  std::uint64_t offset = 0;
  MemoryKind memory = MemoryKind::kHost;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  BufferId buffer;  // the registered range that the memory lies in; 0: none
  std::uint64_t user_data = 0;
};
[[nodiscard]] IoRequest read_request(FileId file, std::uint64_t offset, std::span<std::byte> to,
                                     std::uint64_t user_data = 0, BufferId buffer = {});
[[nodiscard]] IoRequest read_request(FileId file, std::uint64_t offset, DevicePtr to, std::uint64_t bytes,
                                     std::uint64_t user_data = 0, BufferId buffer = {});
[[nodiscard]] IoRequest write_request(FileId file, std::uint64_t offset, std::span<const std::byte> from,
                                      std::uint64_t user_data = 0, BufferId buffer = {});
[[nodiscard]] IoRequest write_request(FileId file, std::uint64_t offset, DevicePtr from, std::uint64_t bytes,
                                      std::uint64_t user_data = 0, BufferId buffer = {});

enum class IoStatus : std::uint8_t {
  kComplete,   // bytes == wanted_bytes
  kEndOfFile,  // the file ends after `bytes`
  kFailed,     // error_number says why; `bytes` were transferred before
};

struct Completion {
  RequestId request;
  std::uint64_t user_data = 0;
  IoKind kind = IoKind::kRead;
  IoStatus status = IoStatus::kComplete;
  FileId file;
  std::uint64_t offset = 0;
  std::uint64_t wanted_bytes = 0;
  std::uint64_t bytes = 0;
  int error_number = 0;
  int library_code = 0;  // of cuFile, with error_number EIO
};

struct QueueStats {
  std::uint64_t completed = 0;  // delivered, failed and ended ones included
  std::uint64_t failed = 0;
  std::uint64_t bytes = 0;
  std::uint64_t short_transfers = 0;  // answers that were continued
  std::uint64_t retries = 0;          // EINTR, EAGAIN, ECANCELED
  std::uint64_t refused_answers = 0;  // stale or duplicate
  std::uint64_t plain_buffers = 0;    // registered here but not with the engine
};

class IoQueue {
 public:
  // Depth and table sizes are the engine's. Throws InvalidArgument for a depth of 0.
  explicit IoQueue(std::unique_ptr<IoEngine> engine);
  // Waits for what is in flight (drain).
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  [[nodiscard]] std::string_view name() const;
  [[nodiscard]] IoCapabilities capabilities() const;
  [[nodiscard]] const QueueStats& stats() const;
  [[nodiscard]] std::size_t depth() const;
  // Requests that are prepared, submitted or not yet delivered.
  [[nodiscard]] std::size_t used_slots() const;

  // Memory that many requests will use, pinned once where the engine can; where it cannot (RLIMIT_MEMLOCK),
  // one message in the log and requests go on without. Throws InvalidArgument for an empty range or a full
  // table, Unsupported for device memory without capabilities().device_memory.
  [[nodiscard]] BufferId register_buffer(std::span<std::byte> memory);
  [[nodiscard]] BufferId register_buffer(DevicePtr memory, std::uint64_t bytes);
  // Throws InvalidArgument where the id is dead or a request uses it.
  void unregister_buffer(BufferId id);
  // The File outlives the id. Throws InvalidArgument for a full table, IoError where the engine refuses the
  // file.
  [[nodiscard]] FileId register_file(const File& file);
  void unregister_file(FileId id);

  // nullopt where all slots are used. Throws InvalidArgument for dead ids, memory outside its registered
  // range, no bytes, a write to a file open for reading, and on a direct File for what is not aligned;
  // Unsupported for device memory without the capability.
  [[nodiscard]] std::optional<RequestId> prepare(const IoRequest& request);
  // Takes back a prepared request; false where it was submitted or is gone.
  bool release(RequestId id);
  // Sends everything prepared. Does not wait. Throws IoError where the engine fails.
  void submit();
  // Delivers completions of submitted requests, in any order, each once. Waits until `at_least` of them are
  // there, nothing is in flight any more, or the deadline. Throws IoError where the engine fails.
  [[nodiscard]] std::size_t poll(std::span<Completion> out, std::size_t at_least = 1,
                                 IoTime deadline = kForever);
  // Blocking. Prepared requests are released; submitted ones end but are not delivered.
  void drain() noexcept;

  // What a completion that is not kComplete says, with path and offset of the first byte that is missing.
  [[nodiscard]] IoError error_of(const Completion& completion) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metrale::io
