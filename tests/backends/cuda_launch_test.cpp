// SPDX-License-Identifier: Apache-2.0
// Launches: their errors, shared memory, modules from outside, faults that kernels report.
#include <array>

#include "backends/fake_cuda_test.h"

namespace metrale::test {
namespace {

namespace kernels = testing_kernels;
using gpu::message_of;
using testing::AllOf;
using testing::HasSubstr;

struct CudaLaunches : FakeCudaTest {
  std::unique_ptr<gpu::GpuBackend> gpu = open_fake_backend();
  void TearDown() override {
    gpu.reset();
    expect_nothing_alive();
  }
  void launch_empty(const gpu::LaunchShape& shape) {
    const kernels::EmptyArgs args{};
    gpu->launch(gpu->kernel("test_vector", "empty"), shape, gpu->default_stream(),
                std::as_bytes(std::span(&args, 1)));
  }
  static int attribute_calls() { return fake_cuda().calls("cuFuncSetAttribute"); }
};

TEST_F(CudaLaunches, ErrorsNameKernelShapeAndResultAndCostNothingElse) {
  EXPECT_THAT(message_of<DeviceError>([&] { launch_empty({.grid = {3, 2}, .block = {2048, 1, 4}}); }),
              AllOf(HasSubstr("test_vector::empty"), HasSubstr("3x2x1"), HasSubstr("2048x1x4"),
                    HasSubstr("0 bytes of shared memory"), HasSubstr("CUDA_ERROR_INVALID_VALUE (1)")));
  EXPECT_THAT(message_of<DeviceError>(
                  [&] { launch_empty({.grid = {5, 4}, .block = {32, 2}, .shared_bytes = 1U << 20}); }),
              AllOf(HasSubstr("test_vector::empty"), HasSubstr("5x4x1"), HasSubstr("32x2x1"),
                    HasSubstr("1048576 bytes of shared memory"), HasSubstr("232448"),
                    HasSubstr("CUDA_ERROR_INVALID_VALUE (1)")));
  launch_empty({.grid = {}, .block = {32}});
  EXPECT_NO_THROW(gpu->synchronize(gpu->default_stream()));
}

TEST_F(CudaLaunches, AKernelIsLoadedWhereItIsLookedUpAndNotAtItsLaunch) {
  fake_cuda().forget_calls();
  const gpu::KernelHandle scale = gpu->kernel("test_vector", "scale");
  EXPECT_EQ(fake_cuda().calls("cuFuncLoad"), 1);
  static_cast<void>(gpu->kernel("test_vector", "scale"));
  EXPECT_EQ(fake_cuda().calls("cuFuncLoad"), 1);
  EXPECT_FALSE(scale.is_null());
}

TEST_F(CudaLaunches, EmptyGridIsNotLaunched) {
  fake_cuda().forget_calls();
  launch_empty({.grid = {0}, .block = {32}});
  EXPECT_EQ(fake_cuda().calls("cuLaunchKernel"), 0);
}

TEST_F(CudaLaunches, SharedMemoryIsAskedForOnlyAbove48KiBAndWhereItGrows) {
  const auto launch_with = [&](std::uint32_t bytes) {
    launch_empty({.grid = {}, .block = {32}, .shared_bytes = bytes});
    return attribute_calls();
  };
  EXPECT_EQ(launch_with(0), 0);
  EXPECT_EQ(launch_with(48 << 10), 0);
  EXPECT_EQ(launch_with((48 << 10) + 4), 1);
  EXPECT_EQ(launch_with(100'000), 2);
  EXPECT_EQ(launch_with(60'000), 2);
  EXPECT_EQ(launch_with(100'000), 2);
}

TEST_F(CudaLaunches, SharedMemoryOfTheKernelItselfCountsToo) {
  constexpr std::string_view kImage = "fake module\nfunction empty 40000\n";
  gpu->load_module("static", std::as_bytes(std::span(kImage)));
  const gpu::KernelHandle empty = gpu->kernel("static", "empty");
  const std::array<std::byte, sizeof(kernels::EmptyArgs)> nothing{};
  const gpu::KernelArg arg(nothing);
  const auto launch_with = [&](std::uint32_t bytes) {
    gpu->launch_raw(empty, {.grid = {}, .block = {32}, .shared_bytes = bytes}, gpu->default_stream(),
                    std::span(&arg, 1));
    return attribute_calls();
  };
  EXPECT_EQ(launch_with((48 << 10) - 40'000), 0);
  EXPECT_EQ(launch_with((48 << 10) - 40'000 + 4), 1);
  EXPECT_EQ(launch_with((48 << 10) - 40'000), 1);
  EXPECT_EQ(launch_with(20'000), 2);
  EXPECT_THROW(static_cast<void>(launch_with(200'000)), DeviceError);
}

// A body that asks for a function twice, for less the second time.
struct GreedyBody {
  explicit GreedyBody(gpu::CudaKernelContext& context)
      : function(context.function("test_vector", "empty", 100'000)) {
    function = context.function("test_vector", "empty", 60'000);
  }
  void launch(gpu::CudaLaunch& to, const kernels::EmptyArgs& args) const {
    to.kernel(function, {.grid = {}, .block = {32}, .shared_bytes = 100'000}, args);
  }
  gpu::CudaFunction function;
};

TEST_F(CudaLaunches, AskingForLessSharedMemoryTakesNoneAway) {
  gpu::CudaKernelTable table;
  table.add_module("test_vector", {.portable = fake_cuda_image(), .sm90a = {}});
  table.add_host(kernels::kEmpty,
                 [](gpu::CudaKernelContext& context) { return std::make_unique<GreedyBody>(context); });
  const auto host_bodies = backends::make_cuda_backend(open_fake_host(), {}, table);

  EXPECT_NO_THROW(launch(*host_bodies, kernels::kEmpty, host_bodies->default_stream(), kernels::EmptyArgs{}));

  EXPECT_EQ(attribute_calls(), 1);
  host_bodies->synchronize(host_bodies->default_stream());
}

TEST_F(CudaLaunches, ImagesAreChosenByPathAndDevice) {
  gpu.reset();  // it holds the device, and with it what is known of it
  gpu::CudaKernelTable table;
  constexpr std::string_view kOther = "fake module\nfunction scale\n";
  table.add_module("test_vector", {.portable = fake_cuda_image(), .sm90a = std::as_bytes(std::span(kOther))});
  const auto has_append = [&](const backends::CudaBackendOptions& options) {
    const auto chosen = backends::make_cuda_backend(open_fake_host(), options, table);
    try {
      static_cast<void>(chosen->kernel("test_vector", "append"));
      return true;
    } catch (const InvalidArgument&) {
      return false;
    }
  };
  EXPECT_FALSE(has_append({}));
  EXPECT_TRUE(has_append({.path = backends::CudaCodePath::kPortable}));
  fake_cuda().set_compute_capability(0, 8, 0);
  EXPECT_TRUE(has_append({}));
}

// ---- modules from outside

TEST_F(CudaLaunches, ForeignKernelTakesAListOfArguments) {
  gpu->load_module("foreign", fake_cuda_image());
  const std::array<int, 3> numbers{1, 2, 3};
  const gpu::DeviceBuffer in(*gpu, sizeof(numbers));
  const gpu::DeviceBuffer out(*gpu, sizeof(int));
  gpu->copy_h2d_blocking(in.ptr(), std::as_bytes(std::span(numbers)));
  const int count = 3;
  const unsigned char scale = 2;
  const std::array<gpu::KernelArg, 4> args{gpu::KernelArg(out.ptr()), gpu::KernelArg(in.ptr()),
                                           gpu::KernelArg(std::as_bytes(std::span(&count, 1))),
                                           gpu::KernelArg(std::as_bytes(std::span(&scale, 1)))};

  gpu->launch_raw(gpu->kernel("foreign", "foreign_sum"), {}, gpu->default_stream(), args);
  gpu->synchronize(gpu->default_stream());

  int sum = 0;
  gpu->copy_d2h_blocking(std::as_writable_bytes(std::span(&sum, 1)), out.ptr());
  EXPECT_EQ(sum, 12);
  EXPECT_THROW(gpu->launch(gpu->kernel("foreign", "foreign_sum"), {}, gpu->default_stream(),
                           std::span<const std::byte>{}),
               InvalidArgument);
}

// foreign_sum takes two addresses, an int and a byte.
struct CudaRawArguments : CudaLaunches {
  std::vector<gpu::KernelArg> arguments() {
    return {DevicePtr(memory.ptr()), DevicePtr(memory.ptr()), bytes_of(count), bytes_of(scale)};
  }
  void launch_foreign(const std::vector<gpu::KernelArg>& args) {
    if (!gpu->has_module("foreign")) gpu->load_module("foreign", fake_cuda_image());
    gpu->launch_raw(gpu->kernel("foreign", "foreign_sum"), {}, gpu->default_stream(), args);
    gpu->synchronize(gpu->default_stream());
  }
  void TearDown() override {
    memory = {};
    CudaLaunches::TearDown();
  }
  template <class T>
  static std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
  }

  gpu::DeviceBuffer memory{*gpu, 64};
  const int count = 1;
  const unsigned char scale = 2;
  const std::uint64_t wide = 1;
};

TEST_F(CudaRawArguments, OfAnotherNumberAreRefused) {
  std::vector<gpu::KernelArg> args = arguments();
  args.pop_back();
  EXPECT_THAT(message_of<InvalidArgument>([&] { launch_foreign(args); }),
              AllOf(HasSubstr("foreign::foreign_sum"), HasSubstr("4 argument"), HasSubstr("not 3")));
  EXPECT_EQ(fake_cuda().calls("cuLaunchKernel"), 0);
  EXPECT_NO_THROW(launch_foreign(arguments()));
}

TEST_F(CudaRawArguments, OfAnotherSizeAreRefused) {
  std::vector<gpu::KernelArg> args = arguments();
  args[2] = bytes_of(wide);
  EXPECT_THAT(message_of<InvalidArgument>([&] { launch_foreign(args); }),
              AllOf(HasSubstr("argument 2"), HasSubstr("foreign::foreign_sum"), HasSubstr("4 bytes"),
                    HasSubstr("8 given")));
  args = arguments();
  args[3] = memory.ptr();
  EXPECT_THAT(message_of<InvalidArgument>([&] { launch_foreign(args); }), HasSubstr("argument 3"));
  EXPECT_EQ(fake_cuda().calls("cuLaunchKernel"), 0);
}

TEST_F(CudaRawArguments, AreTheCallersDutyWhereTheDriverDoesNotTell) {
  memory = {};
  gpu.reset();
  fake_cuda().hide("cuFuncGetParamInfo");
  gpu = open_fake_backend();
  memory = gpu::DeviceBuffer(*gpu, 64);
  EXPECT_NO_THROW(launch_foreign(arguments()));
  std::vector<gpu::KernelArg> args = arguments();
  args[2] = bytes_of(wide);
  EXPECT_NO_THROW(launch_foreign(args)) << "it is not known to be wrong";
}

TEST_F(CudaLaunches, BadImageIsRefusedWithWhatTheCompilerSays) {
  constexpr std::string_view kBad = "fake module\nnonsense\n";
  const auto load = [&](std::string_view image) {
    return message_of<InvalidArgument>([&] { gpu->load_module("bad", std::as_bytes(std::span(image))); });
  };
  EXPECT_THAT(load(kBad), AllOf(HasSubstr("bad"), HasSubstr("device 0"), HasSubstr("CUDA_ERROR_INVALID_PTX"),
                                HasSubstr("line 2: what is 'nonsense'?")));
  EXPECT_THAT(load("text"), HasSubstr("CUDA_ERROR_INVALID_IMAGE"));
  EXPECT_FALSE(gpu->has_module("bad"));
}

TEST_F(CudaLaunches, VariablesOfAModuleAreReadAndWrittenAndAbsentOnesNamed) {
  gpu->load_module("foreign", fake_cuda_image());
  const gpu::DeviceRange variable = gpu->device_symbol("foreign", "foreign_offset");
  ASSERT_EQ(variable.bytes, 4U);
  std::uint32_t value = 11;
  gpu->copy_h2d_blocking(variable.ptr, std::as_bytes(std::span(&value, 1)));
  value = 0;
  gpu->copy_d2h_blocking(std::as_writable_bytes(std::span(&value, 1)), variable.ptr);
  EXPECT_EQ(value, 11U);
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { static_cast<void>(gpu->device_symbol("foreign", "absent")); }),
      AllOf(HasSubstr("foreign"), HasSubstr("absent"), HasSubstr("CUDA_ERROR_NOT_FOUND")));
}

// ---- faults

TEST_F(CudaLaunches, ReportOfAKernelReachesTheHostAndSticksToItsBackend) {
  const auto other = open_fake_backend();
  launch(*gpu, kernels::kFail, gpu->default_stream(), kernels::FailArgs{7});
  EXPECT_THAT(message_of<DeviceError>([&] { gpu->synchronize(gpu->default_stream()); }),
              HasSubstr("asked to fail with 7"));
  launch(*gpu, kernels::kFail, gpu->default_stream(), kernels::FailArgs{8});
  EXPECT_THAT(message_of<DeviceError>([&] { gpu->synchronize(gpu->default_stream()); }),
              HasSubstr("fail with 7"));
  EXPECT_NO_THROW(other->synchronize(other->default_stream()));
}

TEST_F(CudaLaunches, SynchronisedLaunchesFailAtTheCall) {
  const auto debugged = open_fake_backend({.synchronize_launches = true});
  EXPECT_THROW(launch(*debugged, kernels::kFail, debugged->default_stream(), kernels::FailArgs{7}),
               DeviceError);
}

}  // namespace
}  // namespace metrale::test
