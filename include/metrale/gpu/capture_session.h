// SPDX-License-Identifier: Apache-2.0
// CaptureSession: who takes part in one capture and what has been joined back. The bookkeeping of backends
// that record commands themselves; it holds no commands. The owner locks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <metrale/gpu/types.h>

namespace metrale::gpu {

class CaptureSession {
 public:
  // How much of each stream's recorded work lies before a point, by order of joining.
  using Position = std::vector<std::uint64_t>;

  explicit CaptureSession(StreamRef origin);

  [[nodiscard]] StreamRef origin() const { return streams_.front(); }
  [[nodiscard]] std::span<const StreamRef> streams() const { return streams_; }
  // One more command was recorded on a stream of the session.
  void add_node(StreamRef stream);
  // What an event that is recorded now on `stream` stands for.
  [[nodiscard]] Position position(StreamRef stream) const;
  // Later work on `stream` comes after `position`; a stream that is new to the session joins it.
  void wait(StreamRef stream, const Position& position);
  // Streams with work that the origin does not wait for, in order of joining.
  [[nodiscard]] std::vector<StreamRef> unjoined() const;

 private:
  [[nodiscard]] std::size_t index_of(StreamRef stream) const;

  std::vector<StreamRef> streams_;
  std::vector<Position> seen_;  // [stream][stream]; its own entry counts its own commands
};

}  // namespace metrale::gpu
