// SPDX-License-Identifier: Apache-2.0
// RingQueue: a first-in first-out queue that stops allocating once it has been as long as it gets.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <metrale/base/assert.h>

namespace metrale {

template <class T>
class RingQueue {
 public:
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // The i-th from the front.
  [[nodiscard]] T& operator[](std::size_t i) { return slots_[(first_ + i) & (slots_.size() - 1)]; }

  // Room for `count` without another allocation.
  void reserve(std::size_t count) {
    while (slots_.size() < count) grow();
  }

  void push(T value) {
    if (size_ == slots_.size()) grow();
    (*this)[size_] = std::move(value);
    ++size_;
  }
  [[nodiscard]] T pop() {
    METRALE_ASSERT(size_ != 0);
    T value = std::exchange((*this)[0], T{});
    first_ = (first_ + 1) & (slots_.size() - 1);
    --size_;
    return value;
  }

 private:
  void grow() {
    std::vector<T> larger(slots_.empty() ? 8 : slots_.size() * 2);
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> slots_;  // a power of two
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace metrale
