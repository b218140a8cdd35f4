// SPDX-License-Identifier: Apache-2.0
// What the mock keeps of captures: recorded work and the addresses it points into. The owner locks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <metrale/gpu/capture_session.h>

#include "gpu/mock/mock_memory.h"

namespace metrale::gpu {

struct MockNode {
  std::string what;
  std::function<void(StreamRef)> run;    // with the stream of the replay
  std::vector<std::uint64_t> addresses;  // that lay in live allocations when it was recorded
};

struct MockCapture {
  explicit MockCapture(StreamRef origin) : session(origin) {}
  CaptureSession session;
  std::vector<MockNode> nodes;
  bool is_over = false;
};

struct MockEvent {
  std::shared_ptr<MockCapture> capture;  // null: recorded outside captures, or never
  CaptureSession::Position position;
  bool is_recorded = false;
};

class MockCaptures {
 public:
  explicit MockCaptures(const MockMemory& memory) : memory_(memory) {}

  [[nodiscard]] bool is_capturing(StreamRef stream) const { return active_.contains(stream); }
  void begin(StreamRef stream);
  [[nodiscard]] std::vector<MockNode> end(StreamRef stream);
  void abort(StreamRef stream);
  // Keeps those of node.addresses that lie in live allocations.
  void record(StreamRef stream, MockNode node);
  void record_event(StreamRef stream, MockEvent& event);
  void wait(StreamRef stream, const MockEvent& event);

 private:
  void close(MockCapture& capture);

  const MockMemory& memory_;
  std::map<StreamRef, std::shared_ptr<MockCapture>> active_;
};

}  // namespace metrale::gpu
