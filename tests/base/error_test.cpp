// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>

namespace metrale {
namespace {

using testing::HasSubstr;

TEST(Error, OutOfMemorySaysWhatWasWantedAndWhatIsFree) {
  const OutOfMemory error("device", 100, 40, "lower --max-batch-size");
  EXPECT_THAT(error.what(), HasSubstr("100 bytes wanted, 40 free: lower --max-batch-size"));
  EXPECT_EQ(error.wanted_bytes(), 100U);
  EXPECT_EQ(error.tier(), "device");
}

TEST(Error, IoErrorNamesPathOffsetAndCause) {
  const IoError error("cannot read", "/a/b", EIO, 4096);
  EXPECT_THAT(error.what(), HasSubstr("cannot read '/a/b' at byte 4096: Input/output error"));
  EXPECT_EQ(error.error_number(), EIO);
}

TEST(Error, PrematureEndHasNoErrnoText) {
  const IoError error("cannot read", "f", 0, 8, "the file ends here");
  EXPECT_STREQ(error.what(), "cannot read 'f' at byte 8: the file ends here");
}

}  // namespace
}  // namespace metrale
