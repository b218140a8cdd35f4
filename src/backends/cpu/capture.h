// SPDX-License-Identifier: Apache-2.0
// Capture: what a capture of the CPU backend has recorded so far.
#pragma once

#include <utility>

#include <metrale/gpu/allocation_book.h>
#include <metrale/gpu/capture_book.h>
#include <metrale/gpu/capture_session.h>
#include <metrale/gpu/types.h>

#include "backends/cpu/command.h"

namespace metrale::backends::cpu {

// Guarded by the lock of its book.
struct Capture {
  explicit Capture(gpu::StreamRef origin) : session(origin) {}

  // The allocations that the last node points into. Arguments are scanned word by word: a number that looks
  // like a live address costs at worst a refused replay.
  void note_uses(const gpu::AllocationBook& book);

  gpu::CaptureSession session;
  Batch nodes;
  gpu::GraphUses uses;
  bool is_over = false;
};

using CaptureBook = gpu::CaptureBook<Capture>;
using CapturePoint = gpu::CapturePoint<Capture>;

}  // namespace metrale::backends::cpu
