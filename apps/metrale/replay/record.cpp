// SPDX-License-Identifier: Apache-2.0
#include "record.h"

namespace metrale::replay {

void LoadCurve::add(const Load& load) {
  if (seen_++ % stride_ != 0) return;
  if (points_.size() == kMost) {
    for (std::size_t i = 0; i < kMost / 2; ++i) points_[i] = points_[2 * i];
    points_.resize(kMost / 2);
    stride_ *= 2;
  }
  points_.push_back(load);
}

std::vector<std::int32_t> prompt_of(const Trace& trace, const std::vector<RequestRecord>& records,
                                    std::size_t request) {
  std::vector<std::size_t> line{request};  // of descent, upwards
  while (const auto parent = trace.requests[line.back()].parent) line.push_back(*parent);
  std::vector<std::int32_t> prompt;
  for (auto at = line.rbegin(); at != line.rend(); ++at) {
    append_segments(trace, trace.requests[*at], prompt);
    if (*at == request) break;
    const std::vector<std::int32_t>& answer = records[*at].answers.front().tokens;
    prompt.insert(prompt.end(), answer.begin(), answer.end());
  }
  return prompt;
}

}  // namespace metrale::replay
