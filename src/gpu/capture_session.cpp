// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <metrale/base/error.h>
#include <metrale/gpu/capture_session.h>

namespace metrale::gpu {

CaptureSession::CaptureSession(StreamRef origin) : streams_{origin}, seen_{{0}} {}

std::size_t CaptureSession::index_of(StreamRef stream) const {
  const auto found = std::find(streams_.begin(), streams_.end(), stream);
  expects(found != streams_.end(), "the stream takes no part in this capture");
  return static_cast<std::size_t>(found - streams_.begin());
}

void CaptureSession::add_node(StreamRef stream) {
  const std::size_t index = index_of(stream);
  ++seen_[index][index];
}

CaptureSession::Position CaptureSession::position(StreamRef stream) const {
  return seen_[index_of(stream)];
}

void CaptureSession::wait(StreamRef stream, const Position& position) {
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
    streams_.push_back(stream);
    for (Position& row : seen_) row.resize(streams_.size(), 0);
    seen_.emplace_back(streams_.size(), 0);
  }
  Position& row = seen_[index_of(stream)];
  for (std::size_t i = 0; i < position.size(); ++i) row[i] = std::max(row[i], position[i]);
}

std::vector<StreamRef> CaptureSession::unjoined() const {
  std::vector<StreamRef> left;
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    if (seen_[0][i] < seen_[i][i]) left.push_back(streams_[i]);
  }
  return left;
}

}  // namespace metrale::gpu
