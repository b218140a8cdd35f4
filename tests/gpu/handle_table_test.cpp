// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include <metrale/gpu/handle_table.h>

namespace metrale::gpu {
namespace {

using Table = HandleTable<EventRef, int>;

EventRef add(Table& table, int value) {
  return table.add([value](EventRef) { return std::make_shared<int>(value); });
}

TEST(HandleTable, HandleFindsItsObject) {
  Table table("event");
  const EventRef one = add(table, 1);
  const EventRef two = add(table, 2);

  EXPECT_EQ(*table.find(one), 1);
  EXPECT_EQ(*table.find(two), 2);
}

TEST(HandleTable, DeadHandleDoesNotFindItsSuccessor) {
  Table table("event");
  const EventRef old = add(table, 1);
  table.remove(old);
  const EventRef fresh = add(table, 2);

  EXPECT_NE(old, fresh);
  EXPECT_THROW(static_cast<void>(table.find(old)), InvalidArgument);
  EXPECT_THROW(table.remove(old), InvalidArgument);
  EXPECT_EQ(*table.find(fresh), 2);
}

TEST(HandleTable, NullAndForeignHandlesAreRefusedByKind) {
  const Table table("event");
  try {
    static_cast<void>(table.find(EventRef{}));
    ADD_FAILURE() << "the null handle was found";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("no such event"), std::string::npos);
  }
  EXPECT_THROW(static_cast<void>(table.find(EventRef(std::uint64_t{99}))), InvalidArgument);
}

TEST(HandleTable, FailedConstructionLeavesTheSlotFree) {
  Table table("event");

  EXPECT_THROW(static_cast<void>(table.add([](EventRef) -> std::shared_ptr<int> { throw 1; })), int);

  EXPECT_TRUE(table.all().empty());
  EXPECT_EQ(*table.find(add(table, 3)), 3);
}

TEST(HandleTable, AllListsTheLiving) {
  Table table("event");
  const EventRef gone = add(table, 1);
  static_cast<void>(add(table, 2));
  table.remove(gone);

  ASSERT_EQ(table.all().size(), 1U);
  EXPECT_EQ(*table.all().front(), 2);
}

}  // namespace
}  // namespace metrale::gpu
