// SPDX-License-Identifier: Apache-2.0
// Two devices at the same time: copies, kernels and cuBLASLt's products, from one thread and from two, and
// the end of one backend while the other works.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/backends/cuda.h>
#include <metrale/gpu/stream.h>
#include <metrale/kernels/activation.h>
#include <metrale/kernels/linear.h>

#include "cuda/support/device_run.h"
#include "cuda/support/devices.h"
#include "kernels/support/linear_case.h"

namespace metrale::test {
namespace {

using kernels::LinearCase;
using quant::ElementType;

constexpr std::uint32_t kWorkspaceBytes = 32U << 20;

LinearCase linear_case() {
  LinearCase c{.rows = 33, .in_features = 2048, .out_features = 192};
  c.in_type = c.weight_type = ElementType::kBf16;
  c.out_type = ElementType::kF32;
  return c;
}

// A device with its own inputs. A round copies them there, computes `linear`, adds the result to zeros and
// copies that back; every round gives the bits of the first one, which was held to the model.
class Worker {
 public:
  explicit Worker(int ordinal) : case_(linear_case()), data_(random_data(ordinal)) {
    runtime::BackendOptions options = cuda_options();
    options.device = "cuda:" + std::to_string(ordinal);
    gpu_ = runtime::open_backend(options);
    stream_ = std::make_unique<gpu::Stream>(gpu::make_stream(*gpu_));
    run_ = std::make_unique<kernels::DeviceRun>(*gpu_);
    const std::uint64_t rows = run_->put(case_.rows);
    const std::size_t outs = std::size_t{case_.rows} * case_.out_features;
    linear_ = {.rows = rows,
               .in = run_->room(data_.in.bytes().size()),
               .weight = run_->put(data_.weight),
               .bias = 0,
               .out = run_->room(outs * sizeof(float)),
               .max_rows = case_.rows,
               .in_features = case_.in_features,
               .out_features = case_.out_features,
               .in_stride = case_.in_features,
               .out_stride = case_.out_features,
               .in_type = case_.in_type,
               .weight_type = case_.weight_type,
               .out_type = case_.out_type};
    linear_.workspace = run_->room(kWorkspaceBytes);
    linear_.workspace_bytes = kWorkspaceBytes;
    add_ = {.rows = rows,
            .in = linear_.out,
            .accum = run_->room(outs * sizeof(float)),
            .max_rows = case_.rows,
            .width = case_.out_features,
            .in_type = ElementType::kF32,
            .reserved = 0};
    result_.resize(outs);
    enqueue();
    gpu_->synchronize(stream_->ref());
    expected_ = result_;
    expect_model();
  }

  void enqueue() {
    std::ranges::fill(result_, NAN);
    const std::size_t bytes = result_.size() * sizeof(float);
    gpu_->copy_h2d_async(DevicePtr(linear_.in), data_.in.bytes(), stream_->ref());
    gpu_->memset_async(DevicePtr(add_.accum), 0, bytes, stream_->ref());
    gpu::launch(*gpu_, kernels::kLinear, stream_->ref(), linear_);
    gpu::launch(*gpu_, kernels::kResidualAdd, stream_->ref(), add_);
    gpu_->copy_d2h_async(std::as_writable_bytes(std::span(result_)), DevicePtr(add_.accum), stream_->ref());
  }
  void finish() {
    gpu_->synchronize(stream_->ref());
    EXPECT_EQ(result_, expected_);
  }
  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      enqueue();
      finish();
    }
  }

 private:
  [[nodiscard]] kernels::LinearData random_data(int ordinal) const {
    std::mt19937 random(90 + static_cast<unsigned>(ordinal));
    return random_linear(random, case_);
  }
  void expect_model() const {
    for (std::uint32_t row = 0; row < case_.rows; ++row) {
      for (std::uint32_t o = row % 7; o < case_.out_features; o += 7) {
        const kernels::LinearModel model = model_linear(case_, data_, row, o);
        const auto actual = static_cast<double>(result_[std::size_t{row} * case_.out_features + o]);
        ASSERT_NEAR(actual, model.value, 2 * model.tolerance)
            << gpu_->name() << ", row " << row << ", output " << o;
      }
    }
  }

  LinearCase case_;
  kernels::LinearData data_;
  std::vector<float> result_;
  std::vector<float> expected_;
  std::unique_ptr<gpu::GpuBackend> gpu_;
  std::unique_ptr<gpu::Stream> stream_;
  std::unique_ptr<kernels::DeviceRun> run_;
  kernels::LinearArgs linear_{};
  kernels::ResidualAddArgs add_{};
};

class CudaTwoDevices : public testing::Test {
 protected:
  void SetUp() override {
    if (backends::list_cuda_devices(backends::kCudaDriverLibrary, false).devices.size() < 2) {
      GTEST_SKIP() << "there is one device";
    }
  }
  static int first() { return cuda_test_device().ordinal; }
  static int second() { return first() == 0 ? 1 : 0; }
};

TEST_F(CudaTwoDevices, WorkSideBySideForOneThread) {
  Worker one(first());
  Worker two(second());
  for (int round = 0; round < 50; ++round) {
    one.enqueue();
    two.enqueue();
    (round % 2 == 0 ? one : two).finish();
    (round % 2 == 0 ? two : one).finish();
  }
}

TEST_F(CudaTwoDevices, WorkForAThreadEach) {
  std::vector<std::thread> threads;
  for (const int ordinal : {first(), second()}) {
    threads.emplace_back([ordinal] { Worker(ordinal).rounds(100); });
  }
  for (std::thread& thread : threads) thread.join();
}

// A thread that had one device's context has the other's next.
TEST_F(CudaTwoDevices, ServeThreadsThatTakeThemInTurn) {
  Worker one(first());
  Worker two(second());
  for (int turn = 0; turn < 10; ++turn) {
    Worker& mine = turn % 2 == 0 ? one : two;
    std::thread beside([&] { (turn % 2 == 0 ? two : one).rounds(5); });
    mine.rounds(5);
    beside.join();
  }
}

TEST_F(CudaTwoDevices, OneClosesWhileTheOtherWorks) {
  for (const auto& [closing, staying] : {std::pair{first(), second()}, std::pair{second(), first()}}) {
    auto ends = std::make_unique<Worker>(closing);
    Worker stays(staying);
    std::atomic<int> rounds = 0;
    std::atomic<bool> closed = false;
    std::thread beside([&] {
      for (int after = 0; after < 10; after += closed.load() ? 1 : 0, ++rounds) stays.rounds(1);
    });
    for (const int at = rounds.load(); rounds.load() == at;) std::this_thread::yield();
    ends->rounds(3);
    ends.reset();
    closed = true;
    beside.join();

    Worker(closing).rounds(1);
  }
}

}  // namespace
}  // namespace metrale::test
