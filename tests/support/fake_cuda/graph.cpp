// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/graph.h"

#include <algorithm>
#include <utility>

namespace fake_cuda {

Capture::Capture(const Stream& origin) : origin_(&origin) {
  last_[&origin];
}

std::vector<std::size_t> Capture::point(const Stream& stream) const {
  const auto& last = last_.at(&stream);
  return {last.begin(), last.end()};
}

void Capture::add(const Stream& stream, Command command) {
  std::set<std::size_t>& last = last_.at(&stream);
  nodes_.push_back({.command = std::move(command), .after = {last.begin(), last.end()}});
  last = {nodes_.size() - 1};
}

void Capture::join(const Stream& stream, const std::vector<std::size_t>& nodes) {
  last_[&stream].insert(nodes.begin(), nodes.end());
}

bool Capture::is_joined() const {
  std::vector<bool> seen(nodes_.size());
  std::vector<std::size_t> open = point(*origin_);
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (seen[node]) continue;
    seen[node] = true;
    open.insert(open.end(), nodes_[node].after.begin(), nodes_[node].after.end());
  }
  return std::ranges::all_of(seen, [](bool reached) { return reached; });
}

std::vector<Command> in_hardest_order(const std::vector<Node>& nodes) {
  std::vector<Command> commands;
  std::vector<bool> done(nodes.size());
  while (commands.size() < nodes.size()) {
    std::size_t next = nodes.size() - 1;
    const auto is_ready = [&](std::size_t node) {
      return !done[node] && std::ranges::all_of(nodes[node].after, [&](std::size_t d) { return done[d]; });
    };
    while (!is_ready(next)) --next;
    done[next] = true;
    commands.push_back(nodes[next].command);
  }
  return commands;
}

std::shared_ptr<Stream> find_stream(driver::DriverStream handle) {
  const auto stream = find(&Machine::streams, handle);
  return stream != nullptr && &stream->context() == current_context() ? stream : nullptr;
}

Result submit(driver::DriverStream handle, Command command) {
  const auto stream = find_stream(handle);
  if (stream == nullptr) return kInvalidHandle;
  const auto lost = stream->context().lost;
  Command unless_lost = [lost, run = std::move(command)] {
    if (!lost->load()) run();
  };
  {
    const std::scoped_lock lock(machine().mutex);
    if (Capture* const capture = stream->capture.get()) {
      if (capture->is_invalid) return kCaptureInvalidated;
      capture->add(*stream, std::move(unless_lost));
      return driver::kSuccess;
    }
  }
  stream->enqueue(std::move(unless_lost));
  return driver::kSuccess;
}

void invalidate_capture(Stream& stream) {
  const std::scoped_lock lock(machine().mutex);
  if (stream.capture != nullptr) stream.capture->is_invalid = true;
}

}  // namespace fake_cuda
