// SPDX-License-Identifier: Apache-2.0
#include "gpu/mock/mock_capture.h"

#include <utility>

namespace metrale::gpu {

void MockCaptures::begin(StreamRef stream) {
  active_.emplace(stream, std::make_shared<MockCapture>(stream));
}

void MockCaptures::close(MockCapture& capture) {
  for (const StreamRef stream : capture.session.streams()) active_.erase(stream);
  capture.is_over = true;
}

std::vector<MockNode> MockCaptures::end(StreamRef stream) {
  const auto found = active_.find(stream);
  expects(found != active_.end(), "end_capture on a stream that is not capturing");
  const std::shared_ptr<MockCapture> capture = found->second;
  close(*capture);
  expects(capture->session.origin() == stream,
          "end_capture on a stream that joined the capture; it ends where it began. It is discarded.");
  expects(capture->session.unjoined().empty(),
          "end_capture: a joined stream has work that the capturing stream does not wait for; the capture is "
          "discarded");
  return std::move(capture->nodes);
}

void MockCaptures::abort(StreamRef stream) {
  const auto found = active_.find(stream);
  if (found == active_.end()) return;
  const std::shared_ptr<MockCapture> capture = found->second;
  close(*capture);
}

void MockCaptures::record(StreamRef stream, MockNode node) {
  std::erase_if(node.addresses, [this](std::uint64_t address) { return !memory_.is_live(address); });
  MockCapture& capture = *active_.at(stream);
  capture.nodes.push_back(std::move(node));
  capture.session.add_node(stream);
}

void MockCaptures::record_event(StreamRef stream, MockEvent& event) {
  const auto& capture = active_.at(stream);
  event = {.capture = capture, .position = capture->session.position(stream), .is_recorded = true};
}

void MockCaptures::wait(StreamRef stream, const MockEvent& event) {
  expects(!event.capture->is_over, "wait for an event that was recorded in a capture that is over");
  const auto [found, joined] = active_.emplace(stream, event.capture);
  expects(found->second == event.capture, "wait for an event of another capture");
  event.capture->session.wait(stream, event.position);
}

}  // namespace metrale::gpu
