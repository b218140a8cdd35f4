// SPDX-License-Identifier: Apache-2.0
// FakeCudaKnobs: what tests ask of the fake CUDA driver beside the driver's own calls. The library exports
// `fake_cuda_knobs`, found by dlsym. Plain C types; thread-safe.
#pragma once

#include <cstdint>

extern "C" {

// What was made and not given back, over all devices.
struct FakeCudaLive {
  int allocations;
  int pinned;
  int streams;
  int events;
  int graphs;
  int graph_execs;
  int modules;
  int contexts;  // references on primary contexts
};

struct FakeCudaKnobs {
  // Everything as in a fresh process: two devices, nothing alive, no failures, counts at zero. Nothing is
  // running and nobody uses the driver.
  void (*reset)();
  // The n-th call from now on (1: the next) of `function` (null: of any) gives `result`, once. A call that
  // frees, destroys, waits or ends a capture does its work all the same, as the driver's do. 700 loses the
  // contexts.
  void (*fail)(const char* function, int n, int result);
  // As fail, but every call from now on, until `result` is 0.
  void (*fail_always)(const char* function, int result);
  // The function that fail() struck; empty where it has not yet.
  const char* (*struck)();
  // Calls of `function` (null: of any) since reset() or forget_calls(). Looking up error names does not
  // count.
  int (*calls)(const char* function);
  void (*forget_calls)();
  void (*live)(FakeCudaLive* live);
  // From now on every call in that device's primary context gives 700 and its queued work is dropped.
  void (*lose_context)(int device);
  // cuGetProcAddress_v2 does not find it.
  void (*hide)(const char* function);
  void (*set_device_count)(int count);
  void (*set_integrated)(int device, int integrated);
  void (*set_compute_capability)(int device, int major, int minor);
  // What cuMemGetInfo calls free, and what allocations may still take; by default what is left of the total.
  void (*set_free_bytes)(int device, std::uint64_t bytes);
  // Copies of memory that is not page-locked since reset(): each of them waited for its stream.
  int (*pageable_copies)();
};

const FakeCudaKnobs* fake_cuda_knobs();
}
