// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/mock.h>
#include <metrale/gpu/resource.h>

namespace metrale::gpu {
namespace {

// One buffer, and a note of when it was let go.
class Resource final : public ModelResource {
 public:
  Resource(GpuBackend& gpu, std::string label, std::vector<std::string>& released)
      : buffer_(gpu, 64), label_(std::move(label)), released_(released) {}

 private:
  [[nodiscard]] std::string_view do_label() const override { return label_; }
  void do_release(GpuBackend&) override {
    released_.push_back(label_);
    buffer_.release();
  }

  DeviceBuffer buffer_;
  std::string label_;
  std::vector<std::string>& released_;
};

class TeardownTest : public testing::Test {
 protected:
  TeardownTest() {
    for (const char* label : {"weights", "kv cache", "arena"}) {
      resources_.push_back(std::make_unique<Resource>(*faults_, label, released_));
      teardown_.add(*resources_.back());
    }
  }

  std::unique_ptr<MockBackend> mock_ = make_mock_backend();
  std::unique_ptr<FaultBackend> faults_ = make_fault_backend(*mock_);
  std::vector<std::string> released_;
  std::vector<std::unique_ptr<Resource>> resources_;
  Teardown teardown_;
};

TEST_F(TeardownTest, LetsGoInReverseOrder) {
  teardown_.release_all(*faults_);

  EXPECT_EQ(released_, (std::vector<std::string>{"arena", "kv cache", "weights"}));
  EXPECT_EQ(mock_->live_alloc_count(), 0U);
}

TEST_F(TeardownTest, SecondReleaseDoesNothing) {
  teardown_.release_all(*faults_);
  teardown_.release_all(*faults_);

  EXPECT_EQ(released_.size(), 3U);
}

TEST_F(TeardownTest, FirstFailureIsReportedByLabelAfterAllWereLetGo) {
  const std::vector<std::string> order{"arena", "kv cache", "weights"};
  for (std::size_t step = 0; step < order.size(); ++step) {
    std::vector<std::string> released;
    std::vector<std::unique_ptr<Resource>> resources;
    Teardown teardown;
    for (auto label = order.rbegin(); label != order.rend(); ++label) {
      resources.push_back(std::make_unique<Resource>(*faults_, *label, released));
      teardown.add(*resources.back());
    }
    faults_->fail_nth(FaultPoint::kFree, step + 1);

    try {
      teardown.release_all(*faults_);
      ADD_FAILURE() << "step " << step << " did not fail";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.call(), "release of " + order[step]);
    }

    EXPECT_EQ(released, order);
  }
  teardown_.release_all(*faults_);
  EXPECT_EQ(mock_->live_alloc_count(), 0U);
}

TEST_F(TeardownTest, OfTwoFailuresTheFirstIsReported) {
  // Of three frees the first fails here, and the mock refuses the second: its memory is gone already.
  faults_->fail_nth(FaultPoint::kFree, 1);
  mock_->sweep_unreleased();

  try {
    teardown_.release_all(*faults_);
    ADD_FAILURE() << "nothing failed";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.call(), "release of arena");
  }
  EXPECT_EQ(released_.size(), 3U);
}

}  // namespace
}  // namespace metrale::gpu
