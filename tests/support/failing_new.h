// SPDX-License-Identifier: Apache-2.0
// Allocations of the host that fail on demand. Included by the one source of a program, whose operator new it
// replaces; not for ThreadSanitizer, which has an operator new of its own.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

// How many allocations of this thread still succeed; negative: all.
thread_local int allocations_left = -1;
// Asked of this thread.
[[maybe_unused]] thread_local int allocations = 0;

// Not inline: the compiler takes malloc for a mismatch of delete.
[[gnu::noinline]] void* allocate(std::size_t size) {
  ++allocations;
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::malloc(size == 0 ? 1 : size);
}

[[gnu::noinline]] void release(void* memory) {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  if (void* memory = allocate(size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) {
  return operator new(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}
