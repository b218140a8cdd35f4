// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <gtest/gtest.h>

#include <metrale/base/ring_queue.h>

namespace metrale {
namespace {

TEST(RingQueue, GivesBackInOrderWhileItGrowsAndWraps) {
  RingQueue<int> queue;
  int pushed = 0;
  int popped = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 7; ++i) queue.push(pushed++);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(queue.pop(), popped++);
  }
  EXPECT_EQ(queue.size(), static_cast<std::size_t>(pushed - popped));
  while (!queue.empty()) EXPECT_EQ(queue.pop(), popped++);
  EXPECT_EQ(popped, pushed);
}

TEST(RingQueue, IndexCountsFromTheFront) {
  RingQueue<int> queue;
  for (int i = 0; i < 8; ++i) queue.push(i);
  static_cast<void>(queue.pop());
  queue.push(8);
  EXPECT_EQ(queue[0], 1);
  EXPECT_EQ(queue[7], 8);
}

TEST(RingQueue, PoppedSlotHoldsNothing) {
  RingQueue<std::shared_ptr<int>> queue;
  const auto value = std::make_shared<int>(1);
  queue.push(value);
  static_cast<void>(queue.pop());
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace metrale
