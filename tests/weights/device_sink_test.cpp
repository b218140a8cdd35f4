// SPDX-License-Identifier: Apache-2.0
// Loads into device memory, as they are and converted, and what is left after a failure.
#include <cstring>

#include <metrale/backends/cpu.h>
#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/mock.h>
#include <metrale/weights/device_sink.h>
#include <metrale/weights/file_layout.h>

#include "weights/loader_support.h"

namespace metrale::weights {
namespace {

class DeviceSinkTest : public testing::Test {
 protected:
  DeviceSinkTest()
      : model_(21), directory_(ModelDirectory::open(model_.path())), loads_(load_all(directory_)) {}

  // Every load at a multiple of 256 bytes, at `scale` times its size.
  [[nodiscard]] std::vector<TensorTarget> targets(DevicePtr base, std::uint64_t scale = 1) const {
    std::vector<TensorTarget> targets;
    std::uint64_t at = 0;
    for (const TensorLoad& load : loads_) {
      targets.push_back({.address = base.offset(at), .convert = {}});
      at += round_up(load.size_bytes * scale, std::uint64_t{256});
    }
    return targets;
  }
  [[nodiscard]] std::uint64_t total(std::uint64_t scale = 1) const {
    std::uint64_t bytes = 0;
    for (const TensorLoad& load : loads_) bytes += round_up(load.size_bytes * scale, std::uint64_t{256});
    return bytes;
  }

  RandomModel model_;
  ModelDirectory directory_;
  std::vector<TensorLoad> loads_;
};

TEST_F(DeviceSinkTest, TensorsArriveWhereTheyAreWanted) {
  const auto gpu = backends::make_cpu_backend({}, {});
  for (const LoadPath path : {LoadPath::kDirect, LoadPath::kBuffered, LoadPath::kMap}) {
    const gpu::DeviceBuffer slab(*gpu, total());
    const auto where = targets(slab.ptr());
    DeviceSink sink(*gpu, where);
    (void)load_tensors(directory_, loads_, sink, small_chunks(path));
    for (std::size_t i = 0; i < loads_.size(); ++i) {
      Bytes got(loads_[i].size_bytes);
      gpu->copy_d2h_blocking(got, where[i].address);
      ASSERT_EQ(got, model_.bytes(loads_[i].tensor.info().name)) << to_string(path);
    }
  }
}

TEST_F(DeviceSinkTest, TensorsSideBySideInFileAndMemoryAreCopiedTogether) {
  const auto gpu = gpu::make_mock_backend({});
  const FileLayout layout = file_layout(loads_);
  const gpu::DeviceBuffer slab(*gpu, layout.size_bytes);
  std::vector<TensorTarget> where;
  for (const std::uint64_t offset : layout.offsets) {
    where.push_back({.address = slab.ptr().offset(offset), .convert = {}});
  }
  LoadOptions whole;
  whole.path = LoadPath::kBuffered;
  DeviceSink sink(*gpu, where);
  const LoadReport report = load_tensors(directory_, loads_, sink, whole);
  EXPECT_LT(report.chunks, loads_.size());
  EXPECT_EQ(gpu->stats().h2d_copies, report.chunks);
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    Bytes got(loads_[i].size_bytes);
    gpu->copy_d2h_blocking(got, where[i].address);
    ASSERT_EQ(got, model_.bytes(loads_[i].tensor.info().name));
  }
}

// They may be neighbours in the file, and in memory by chance.
TEST(CopyRunTest, EndsWhereFileOrMemoryOrAllocationDo) {
  const Bytes chunk(300);
  const std::span<const std::byte> bytes(chunk);
  constexpr DevicePtr kBase(0x1000);
  const gpu::DeviceRange allocation{kBase, 256};
  CopyRun run(kBase, bytes.first(100), allocation);
  EXPECT_FALSE(run.extend(kBase.offset(100), bytes.subspan(101, 10))) << "a gap in the file";
  EXPECT_FALSE(run.extend(kBase.offset(101), bytes.subspan(100, 10))) << "a gap in memory";
  EXPECT_FALSE(run.extend(kBase.offset(100), bytes.subspan(100, 157))) << "beyond the allocation";
  EXPECT_EQ(run.bytes().size(), 100U);
  EXPECT_TRUE(run.extend(kBase.offset(100), bytes.subspan(100, 156)));
  EXPECT_FALSE(run.extend(kBase.offset(256), bytes.subspan(256, 1))) << "in the next allocation";
  EXPECT_EQ(run.to(), kBase);
  EXPECT_EQ(run.bytes().data(), chunk.data());
  EXPECT_EQ(run.bytes().size(), 256U);
  EXPECT_FALSE(CopyRun().extend(DevicePtr(), {})) << "nothing has begun";
}

TEST_F(DeviceSinkTest, ElementsAreConvertedOnTheWay) {
  const auto gpu = backends::make_cpu_backend({}, {});
  const gpu::DeviceBuffer slab(*gpu, total(4));
  auto where = targets(slab.ptr(), 4);
  // Every byte becomes its position in the tensor, with the byte in front: four bytes for one.
  for (TensorTarget& target : where) {
    target.in_element_bytes = 1;
    target.out_element_bytes = 4;
    target.convert = [](std::uint64_t first, std::span<const std::byte> in, std::span<std::byte> out) {
      for (std::size_t i = 0; i < in.size(); ++i) {
        const auto value = static_cast<std::uint32_t>(first + i) << 8 | std::to_integer<std::uint32_t>(in[i]);
        std::memcpy(&out[4 * i], &value, 4);
      }
    };
  }
  DeviceSink sink(*gpu, where);
  (void)load_tensors(directory_, loads_, sink, small_chunks());
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    const Bytes& stored = model_.bytes(loads_[i].tensor.info().name);
    Bytes got(4 * stored.size());
    gpu->copy_d2h_blocking(got, where[i].address);
    for (std::size_t k = 0; k < stored.size(); ++k) {
      std::uint32_t value = 0;
      std::memcpy(&value, &got[4 * k], 4);
      ASSERT_EQ(value, static_cast<std::uint32_t>(k) << 8 | std::to_integer<std::uint32_t>(stored[k]));
    }
  }
}

// Whatever the device refuses, at its first call, its second and so on, ends the load and leaves nothing.
TEST_F(DeviceSinkTest, NothingIsLeftAfterAFailureOfTheDevice) {
  const auto gpu = backends::make_cpu_backend({}, {});
  const gpu::DeviceBuffer slab(*gpu, total());
  const std::uint64_t live = gpu->live_bytes();
  for (const auto point : {gpu::FaultPoint::kAllocPinned, gpu::FaultPoint::kCopy, gpu::FaultPoint::kStream,
                           gpu::FaultPoint::kSynchronize}) {
    int failures = 0;
    for (std::uint64_t nth = 1; nth < 200; ++nth) {
      const auto faults = gpu::make_fault_backend(*gpu);
      faults->fail_nth(point, nth);
      try {
        DeviceSink sink(*faults, targets(slab.ptr()));
        (void)load_tensors(directory_, loads_, sink, small_chunks());
        break;
      } catch (const Error&) {
        ++failures;
      }
    }
    EXPECT_GT(failures, 0) << static_cast<int>(point);
    EXPECT_EQ(gpu->live_bytes(), live);
  }
}

}  // namespace
}  // namespace metrale::weights
