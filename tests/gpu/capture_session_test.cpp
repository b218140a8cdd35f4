// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/capture_session.h>

namespace metrale::gpu {
namespace {

constexpr StreamRef kA(std::uint64_t{1});
constexpr StreamRef kB(std::uint64_t{2});
constexpr StreamRef kC(std::uint64_t{3});

TEST(CaptureSession, StreamThatWasNotJoinedBackIsNamed) {
  CaptureSession session(kA);
  session.wait(kB, session.position(kA));
  session.add_node(kB);

  EXPECT_EQ(session.unjoined(), std::vector{kB});
}

TEST(CaptureSession, WaitingForItsLastCommandJoinsAStreamBack) {
  CaptureSession session(kA);
  session.wait(kB, session.position(kA));
  session.add_node(kB);

  session.wait(kA, session.position(kB));

  EXPECT_TRUE(session.unjoined().empty());
}

TEST(CaptureSession, WorkAfterTheJoinIsUnjoinedAgain) {
  CaptureSession session(kA);
  session.wait(kB, session.position(kA));
  session.add_node(kB);
  const auto early = session.position(kB);
  session.add_node(kB);

  session.wait(kA, early);

  EXPECT_EQ(session.unjoined(), std::vector{kB});
}

TEST(CaptureSession, StreamThatJoinedAndDidNothingIsFine) {
  CaptureSession session(kA);
  session.add_node(kA);
  session.wait(kB, session.position(kA));

  EXPECT_TRUE(session.unjoined().empty());
  EXPECT_EQ(session.streams().size(), 2U);
}

TEST(CaptureSession, JoinMayGoThroughAnotherStream) {
  CaptureSession session(kA);
  session.wait(kB, session.position(kA));
  session.add_node(kB);
  session.wait(kC, session.position(kB));
  session.add_node(kC);

  session.wait(kA, session.position(kC));

  EXPECT_TRUE(session.unjoined().empty());
}

TEST(CaptureSession, PositionTakenBeforeAStreamJoinedStaysGood) {
  CaptureSession session(kA);
  session.add_node(kA);
  const auto early = session.position(kA);
  session.wait(kB, early);
  session.wait(kC, early);
  session.add_node(kC);

  session.wait(kB, early);

  EXPECT_EQ(session.unjoined(), std::vector{kC});
}

TEST(CaptureSession, StrangerIsRefused) {
  CaptureSession session(kA);
  EXPECT_THROW(session.add_node(kB), InvalidArgument);
}

}  // namespace
}  // namespace metrale::gpu
