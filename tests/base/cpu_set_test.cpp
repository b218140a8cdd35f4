// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/cpu_set.h>
#include <metrale/base/error.h>

namespace metrale {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(CpuSet, ListsAreNumbersAndRanges) {
  EXPECT_EQ(parse_cpu_list("0"), (CpuList{0}));
  EXPECT_EQ(parse_cpu_list("0-3,8"), (CpuList{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("8,2-3,0,3"), (CpuList{0, 2, 3, 8}));
}

TEST(CpuSet, TextThatIsNoListIsRefused) {
  for (const char* text : {"", ",", "1,", "a", "3-1", "1-", "-1", "1 2", "0x1", "99999"}) {
    EXPECT_THAT([text] { (void)parse_cpu_list(text); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(text), HasSubstr("as in 0-3,8"))));
  }
}

TEST(CpuSet, WritesTheShortestList) {
  for (const char* text : {"0", "0-3,8", "1-2,4-5,7"}) EXPECT_EQ(to_string(parse_cpu_list(text)), text);
}

TEST(CpuSet, UsableCpusAreUsable) {
  const CpuList usable = usable_cpus();
  ASSERT_FALSE(usable.empty());
  EXPECT_NO_THROW(check_usable(usable));
}

TEST(CpuSet, ACpuThatDoesNotExistIsNamedWithThoseThatDo) {
  EXPECT_THAT([] { check_usable({1023}); }, ThrowsMessage<InvalidArgument>(AllOf(
                                                HasSubstr("CPU 1023"), HasSubstr(to_string(usable_cpus())))));
}

}  // namespace
}  // namespace metrale
