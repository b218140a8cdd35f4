// SPDX-License-Identifier: Apache-2.0
// What the parity tests share: the comparison of numbers bit by bit, buffers beyond 2^31 bytes that exist on
// the device only, and kernels that must report a fault.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/runtime/runtime.h>

#include "cuda/support/device_run.h"
#include "cuda/support/devices.h"

namespace metrale::kernels {

inline constexpr std::uint64_t kBeyond31Bits = (std::uint64_t{1} << 31) + 4096;

// Element by element the same bits; a NaN may be any NaN.
inline void expect_same(const Elements& actual, const Elements& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  if (actual.bytes() == expected.bytes()) return;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float a = actual.get(i);
    const float e = expected.get(i);
    if (std::isnan(a) && std::isnan(e)) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(e))
        << what << ": element " << i << " is " << a << ", expected " << e;
  }
}

inline std::string type_names(std::initializer_list<quant::ElementType> types) {
  std::string names;
  for (const quant::ElementType type : types)
    names += std::string(names.empty() ? "" : ", ") + std::string(to_string(type));
  return names;
}

// `values` with NaN, infinities, zeros, subnormals and the largest numbers here and there.
inline std::vector<float> with_odd_values(std::mt19937& random, std::vector<float> values) {
  constexpr float kOdd[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            0.0F,
                            -0.0F,
                            std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest(),
                            6e-8F,
                            65520.0F};
  for (float& value : values) {
    if (random() % 8 == 0) value = kOdd[random() % std::size(kOdd)];
  }
  return values;
}

// A buffer that only the device has, of NaN bytes.
class BigBuffer {
 public:
  BigBuffer(gpu::GpuBackend& gpu, std::uint64_t bytes) : gpu_(gpu), buffer_(gpu, bytes) {
    gpu_.memset_blocking(buffer_.ptr(), 0xFF, bytes);
  }
  [[nodiscard]] std::uint64_t address() const { return buffer_.ptr().address(); }
  template <class T>
  void put(std::uint64_t offset_bytes, const std::vector<T>& values) {
    gpu_.copy_h2d_blocking(buffer_.ptr().offset(offset_bytes), std::as_bytes(std::span(values)));
  }

 private:
  gpu::GpuBackend& gpu_;
  gpu::DeviceBuffer buffer_;
};

// A backend for one test: a fault stays with the backend that saw it.
class OwnBackend {
 public:
  // The embedded kernels compute linear layers: a library never looks at the step's counts.
  OwnBackend() : gpu_(open()), run(*gpu_) {}

 private:
  static std::unique_ptr<gpu::GpuBackend> open() {
    runtime::BackendOptions options = test::cuda_options();
    options.cublaslt = "";
    return runtime::open_backend(options);
  }
  std::unique_ptr<gpu::GpuBackend> gpu_;

 public:
  DeviceRun run;

  // The kernel reports what contains `text`, and the context survives.
  template <class Args>
  void expect_fault(const gpu::KernelId<Args>& id, const Args& args, const std::string& text) {
    EXPECT_THAT([&] { run.run(id, args); },
                testing::Throws<DeviceError>(
                    testing::AllOf(testing::Property(&DeviceError::what, testing::HasSubstr(text)),
                                   testing::Property(&DeviceError::context_lost, false))));
  }
};

}  // namespace metrale::kernels
