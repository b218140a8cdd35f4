// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/capture.h"

#include <algorithm>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::backends::cpu {
namespace {

std::uint64_t address_of(const std::byte* host) {
  return reinterpret_cast<std::uintptr_t>(host);
}

}  // namespace

bool CaptureBook::is_capturing(gpu::StreamRef stream) const {
  if (active_count_.load(std::memory_order_acquire) == 0) return false;
  const std::scoped_lock lock(mutex_);
  return active_.contains(stream);
}

void CaptureBook::begin(gpu::StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  const bool added = active_.emplace(stream, std::make_shared<Capture>(stream)).second;
  expects(added, "begin_capture on a stream that is capturing");
  active_count_.store(active_.size(), std::memory_order_release);
}

void CaptureBook::close(Capture& capture) {
  for (const gpu::StreamRef stream : capture.session.streams()) active_.erase(stream);
  active_count_.store(active_.size(), std::memory_order_release);
  capture.is_over = true;
}

std::shared_ptr<CpuGraph> CaptureBook::end(gpu::StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  const auto found = active_.find(stream);
  expects(found != active_.end(), "end_capture on a stream that is not capturing");
  const std::shared_ptr<Capture> capture = found->second;
  close(*capture);
  expects(capture->session.origin() == stream,
          "end_capture on a stream that joined the capture; it ends where it began. It is discarded.");
  const auto unjoined = capture->session.unjoined();
  if (!unjoined.empty()) {
    throw InvalidArgument(fmt::format(
        "end_capture: {} stream(s) have work that the capturing stream does not wait for (record an "
        "event there and wait for it here); the capture is discarded",
        unjoined.size()));
  }
  return std::make_shared<CpuGraph>(std::move(capture->nodes), std::move(capture->uses));
}

void CaptureBook::abort(gpu::StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  const auto found = active_.find(stream);
  if (found == active_.end()) return;
  const std::shared_ptr<Capture> capture = found->second;
  close(*capture);
}

bool CaptureBook::record_event(gpu::StreamRef stream, CpuEvent& event) {
  if (active_count_.load(std::memory_order_acquire) == 0) return false;
  const std::scoped_lock lock(mutex_);
  const auto found = active_.find(stream);
  if (found == active_.end()) return false;
  event.set_capture_point({.capture = found->second, .position = found->second->session.position(stream)});
  return true;
}

void CaptureBook::wait(gpu::StreamRef stream, const CpuEvent::CapturePoint& point) {
  const std::scoped_lock lock(mutex_);
  expects(!point.capture->is_over, "wait for an event that was recorded in a capture that is over");
  const auto [found, joined] = active_.emplace(stream, point.capture);
  expects(found->second == point.capture, "wait for an event of another capture");
  active_count_.store(active_.size(), std::memory_order_release);
  point.capture->session.wait(stream, point.position);
}

// Arguments are scanned word by word: a number that looks like a live address costs at worst a refused
// replay.
void CaptureBook::note_uses(Capture& capture) {
  const Command& command = capture.nodes.commands().back();
  if (const auto* kernel = std::get_if<KernelCommand>(&command)) {
    for (const std::uint64_t word : capture.nodes.args(*kernel)) note_use(capture, word);
  } else if (const auto* copy = std::get_if<CopyCommand>(&command)) {
    if (copy->to_device) note_use(capture, address_of(copy->dst));
    if (copy->from_device) note_use(capture, address_of(copy->src));
  } else if (const auto* rows = std::get_if<Copy2dCommand>(&command)) {
    note_use(capture, address_of(rows->dst));
    note_use(capture, address_of(rows->src));
  } else if (const auto* fill = std::get_if<MemsetCommand>(&command)) {
    note_use(capture, address_of(fill->dst));
  }
}

void CaptureBook::note_use(Capture& capture, std::uint64_t address) {
  const auto use = memory_.use_of(address);
  if (!use) return;
  const bool known = std::any_of(capture.uses.begin(), capture.uses.end(), [&](const NodeUse& noted) {
    return noted.use.ledger == use->ledger && noted.use.info.id == use->info.id;
  });
  if (!known) capture.uses.push_back({.node = capture.nodes.commands().size() - 1, .use = *use});
}

}  // namespace metrale::backends::cpu
