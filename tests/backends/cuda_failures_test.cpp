// SPDX-License-Identifier: Apache-2.0
// Every call of the driver that an operation makes fails once: the error names it, nothing leaks, and the
// operation works when it is tried again. Where the call says that the context is lost, so does the backend.
#include <algorithm>
#include <array>
#include <memory>

#include "backends/fake_cuda_test.h"
#include "weights/captured_log.h"

namespace metrale::test {
namespace {

namespace kernels = testing_kernels;
using testing::HasSubstr;

// What an operation works on; what it makes lives until the end.
struct Bench {
  std::vector<std::byte> from;
  std::vector<std::byte> to;
  std::unique_ptr<gpu::GpuBackend> backend;
  std::vector<gpu::DeviceBuffer> buffers;
  std::vector<gpu::PinnedBuffer> pinned;
  std::vector<gpu::Stream> streams;
  std::vector<gpu::Event> events;
  std::vector<gpu::Graph> graphs;
  int modules = 0;

  [[nodiscard]] gpu::GpuBackend& gpu() { return *backend; }
  [[nodiscard]] DevicePtr memory() { return buffers.front().ptr(); }
  [[nodiscard]] gpu::StreamRef stream() { return streams.front().ref(); }
};

struct Operation {
  const char* name;
  bool wants_backend;
  std::function<void(Bench&)> run;
};
void PrintTo(const Operation& operation, std::ostream* out) {
  *out << operation.name;
}

constexpr std::size_t kBytes = 300'000;  // two staging pieces

void make_backend(Bench& bench) {
  bench.backend = open_fake_backend({.red_zone_bytes = 64});
}

void allocate(Bench& bench) {
  bench.buffers.emplace_back(bench.gpu(), 1'000);
  bench.gpu().free_arena(bench.gpu().alloc_arena(1'000));
  EXPECT_GT(bench.gpu().free_memory_bytes(), 0U);
}

void allocate_much_pinned(Bench& bench) {
  constexpr std::size_t kMuch = (std::size_t{5} << 20) + 1'000;
  bench.pinned.emplace_back(bench.gpu(), kMuch);
  const gpu::PinnedBuffer& pinned = bench.pinned.back();
  EXPECT_EQ(pinned.device_address().address() % 4096, 0U);
  EXPECT_EQ(std::count(pinned.span().begin(), pinned.span().end(), std::byte{0}),
            static_cast<std::ptrdiff_t>(kMuch));
  pinned.span().back() = std::byte{1};
}

void allocate_pinned(Bench& bench) {
  bench.pinned.emplace_back(bench.gpu(), 1'000);
  EXPECT_FALSE(bench.pinned.back().device_address().is_null());
}

void use_streams_and_events(Bench& bench) {
  gpu::GpuBackend& gpu = bench.gpu();
  bench.streams.push_back(gpu::make_stream(gpu));
  bench.events.push_back(gpu::make_event(gpu));
  const gpu::StreamRef stream = bench.streams.back().ref();
  const gpu::EventRef event = bench.events.back().ref();
  gpu.record_event(event, stream);
  gpu.stream_wait_event(gpu.default_stream(), event);
  gpu.event_synchronize(event);
  EXPECT_TRUE(gpu.event_query(event));
  gpu.synchronize(stream);
  gpu.bind_to_thread();
}

void capture_and_replay(Bench& bench) {
  gpu::GpuBackend& gpu = bench.gpu();
  bench.from.assign(kBytes, std::byte{3});
  gpu::CaptureScope capture(gpu, bench.stream());
  gpu.copy_h2d_async_retained(bench.memory(), bench.from, bench.stream());
  gpu.memset_async(bench.memory(), 4, 1, bench.stream());
  bench.graphs.push_back(capture.finish());
  gpu.launch_graph(bench.graphs.back().ref(), bench.stream());
  gpu.synchronize(bench.stream());
  bench.graphs.pop_back();
}

void launch_kernels(Bench& bench) {
  gpu::GpuBackend& gpu = bench.gpu();
  const gpu::KernelHandle empty = gpu.kernel("test_vector", "empty");
  const kernels::EmptyArgs args{};
  gpu.launch(empty, {.grid = {}, .block = {32}, .shared_bytes = 60'000}, bench.stream(),
             std::as_bytes(std::span(&args, 1)));
  gpu.synchronize(bench.stream());
}

void load_module(Bench& bench) {
  gpu::GpuBackend& gpu = bench.gpu();
  const std::string name = "foreign" + std::to_string(bench.modules++);
  gpu.load_module(name, fake_cuda_image());
  EXPECT_EQ(gpu.device_symbol(name, "foreign_offset").bytes, 4U);
  EXPECT_FALSE(gpu.kernel(name, "foreign_sum").is_null());
}

void copy_blocking(Bench& bench) {
  gpu::GpuBackend& gpu = bench.gpu();
  std::vector<std::byte> host(kBytes, std::byte{1});
  const DevicePtr half = bench.memory().offset(kBytes);
  gpu.copy_h2d_blocking(bench.memory(), host);
  gpu.copy_d2d_blocking(half, bench.memory(), kBytes);
  gpu.memset_blocking(half, 2, 1);
  gpu.copy_d2h_blocking(host, half);
  EXPECT_EQ(host[0], std::byte{2});
  EXPECT_EQ(host[1], std::byte{1});
}

void copy_ordinary_memory(Bench& bench) {
  gpu::GpuBackend& gpu = bench.gpu();
  const DevicePtr half = bench.memory().offset(kBytes);
  bench.from.assign(kBytes, std::byte{5});
  bench.to.assign(kBytes, std::byte{});
  gpu.copy_h2d_async(bench.memory(), bench.from, bench.stream());
  gpu.copy_h2d_async_retained(half, bench.from, bench.stream());
  gpu.copy_d2h_async(bench.to, half, bench.stream());
  gpu.synchronize(bench.stream());
  EXPECT_EQ(bench.to, bench.from);
}

void copy_pinned_memory(Bench& bench) {
  gpu::GpuBackend& gpu = bench.gpu();
  const gpu::PinnedBuffer& pinned = bench.pinned.front();
  const DevicePtr half = bench.memory().offset(kBytes);
  gpu.copy_h2d_async_retained(bench.memory(), pinned.span(), bench.stream());
  gpu.copy_d2d_async(half, bench.memory(), 64, bench.stream());
  gpu.copy_d2d_2d_async(half, 32, bench.memory(), 64, 32, 4, bench.stream());
  gpu.memset_async(half, 1, 64, bench.stream());
  gpu.copy_d2h_async(pinned.span(), half, bench.stream());
  gpu.synchronize(bench.stream());
}

const std::vector<Operation> kOperations{
    {"MakingABackend", false, make_backend},
    {"Allocating", true, allocate},
    {"AllocatingPinned", true, allocate_pinned},
    {"AllocatingMuchPinned", true, allocate_much_pinned},
    {"StreamsAndEvents", true, use_streams_and_events},
    {"CaptureAndReplay", true, capture_and_replay},
    {"Launching", true, launch_kernels},
    {"LoadingAModule", true, load_module},
    {"BlockingCopies", true, copy_blocking},
    {"CopiesOfOrdinaryMemory", true, copy_ordinary_memory},
    {"PinnedCopies", true, copy_pinned_memory},
};

class CudaFailures : public testing::TestWithParam<Operation> {
 protected:
  void SetUp() override { fake_cuda().reset(); }

  static std::unique_ptr<Bench> prepare(bool with_backend) {
    auto bench = std::make_unique<Bench>();
    if (!with_backend) return bench;
    make_backend(*bench);
    gpu::GpuBackend& gpu = bench->gpu();
    gpu.bind_to_thread();
    bench->buffers.emplace_back(gpu, 2 * kBytes);
    bench->pinned.emplace_back(gpu, 64);
    bench->streams.push_back(gpu::make_stream(gpu));
    // Every staging piece has been used, so that taking one asks its event.
    const std::byte word{};
    for (int i = 0; i < 40; ++i) {
      gpu.copy_h2d_async(bench->memory(), std::span(&word, 1), bench->stream());
    }
    gpu.synchronize(bench->stream());
    return bench;
  }

  // The message of what the operation throws when its n-th call gives `result`; empty where nothing.
  static std::string run_failing(const Operation& operation, Bench& bench, int n, int result) {
    fake_cuda().fail(nullptr, n, result);
    try {
      operation.run(bench);
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.context_lost(), result == kLost) << error.what();
      const bool is_from_a_later_call = result == kLost && may_fail_quietly(struck());
      EXPECT_TRUE(is_from_a_later_call || std::string(error.what()).find(struck()) != std::string::npos)
          << error.what() << " does not name " << struck();
      return error.what();
    } catch (const OutOfMemory& error) {
      EXPECT_THAT(struck(), testing::AnyOf("cuMemAlloc", "cuMemHostAlloc", "cuMemHostRegister"));
      return error.what();
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(struck(), "cuModuleLoadDataEx") << error.what();
      return error.what();
    } catch (const Unsupported& error) {
      EXPECT_EQ(struck(), "cuInit") << error.what();
      return error.what();
    }
    return {};
  }

  static std::string struck() { return fake_cuda().struck(); }
  // Their failure is logged only: the operation itself has succeeded.
  static bool may_fail_quietly(const std::string& call) {
    return call == "cuGraphDestroy" || call == "cuCtxSetCurrent" || call == "cuGraphExecDestroy" ||
           call == "cuEventDestroy" || call == "cuEventSynchronize" || call == "cuCtxGetCurrent";
  }
};

TEST_P(CudaFailures, NameTheCallLeakNothingAndLetARetryWork) {
  const Operation& operation = GetParam();
  int n = 1;
  for (;; ++n) {
    SCOPED_TRACE(testing::Message() << "call " << n);
    fake_cuda().reset();
    CapturedLog log;
    auto bench = prepare(operation.wants_backend);

    const std::string message = run_failing(operation, *bench, n, kNotReady);
    const std::string call = struck();
    if (call.empty()) break;
    if (message.empty()) {
      EXPECT_TRUE(may_fail_quietly(call)) << call;
      EXPECT_THAT(log.lines(), testing::Contains(HasSubstr(call)));
    }
    // What was enqueued before the failure may still read its source.
    if (operation.wants_backend) bench->gpu().synchronize(bench->stream());
    EXPECT_NO_THROW(operation.run(*bench)) << "after " << call << ": " << message;
    bench.reset();

    expect_nothing_alive();
    if (HasFailure()) return;
  }
  EXPECT_GT(n, 3) << "the operation calls the driver";
}

TEST_P(CudaFailures, LossOfTheContextAnywhereEndsEverything) {
  const Operation& operation = GetParam();
  for (int n = 1;; ++n) {
    SCOPED_TRACE(testing::Message() << "call " << n);
    fake_cuda().reset();
    CapturedLog log;
    auto bench = prepare(operation.wants_backend);

    const std::string message = run_failing(operation, *bench, n, kLost);
    const std::string call = struck();
    if (call.empty()) break;
    if (bench->backend != nullptr) {
      try {
        bench->gpu().synchronize(bench->gpu().default_stream());
        ADD_FAILURE() << call << " lost the context and the backend goes on";
      } catch (const DeviceError& error) {
        EXPECT_TRUE(error.context_lost());
      }
    }
    fake_cuda().forget_calls();
    bench.reset();

    for (const std::string& releasing : kReleasingCalls) {
      EXPECT_EQ(fake_cuda().calls(releasing.c_str()), 0) << releasing << " after " << call;
    }
    EXPECT_EQ(fake_cuda_live().contexts, 0);
    if (HasFailure()) return;
  }
  fake_cuda().reset();
}

TEST_P(CudaFailures, LackOfMemoryIsOutOfMemory) {
  const Operation& operation = GetParam();
  for (const char* call : {"cuMemAlloc", "cuMemHostAlloc", "cuMemHostRegister"}) {
    fake_cuda().reset();
    CapturedLog log;
    auto bench = prepare(operation.wants_backend);
    fake_cuda().fail(call, 1, 2);
    try {
      operation.run(*bench);
      EXPECT_EQ(struck(), "") << "nothing was thrown";
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(struck(), call) << error.what();
    }
    bench.reset();
    expect_nothing_alive();
  }
}

struct CudaFailure : FakeCudaTest {};

TEST_F(CudaFailure, ContextThatCannotBeMadeCurrentIsNamedAndChangesNothing) {
  const auto gpu = open_fake_backend();
  fake_cuda().fail("cuCtxSetCurrent", 1, kNotReady);
  EXPECT_THAT(gpu::message_of<DeviceError>([&] { static_cast<void>(gpu->alloc(64)); }),
              HasSubstr("cuCtxSetCurrent"));
  EXPECT_NO_THROW(gpu->free(gpu->alloc(64)));
}

TEST_F(CudaFailure, CopyThatThrowsNoLongerReachesForItsMemory) {
  const auto gpu = open_fake_backend();
  const gpu::DeviceBuffer buffer(*gpu, kBytes);
  std::vector<std::byte> host(kBytes);
  for (const char* call : {"cuMemcpyHtoDAsync", "cuLaunchHostFunc"}) {
    fake_cuda().fail(call, 2, kNotReady);
    fake_cuda().forget_calls();
    EXPECT_THROW(gpu->copy_h2d_async_retained(buffer.ptr(), host, gpu->default_stream()), DeviceError);
    EXPECT_EQ(fake_cuda().calls("cuStreamSynchronize"), 1) << "the first part was enqueued";
  }
  for (const char* call : {"cuMemcpyDtoHAsync", "cuLaunchHostFunc"}) {
    fake_cuda().fail(call, 2, kNotReady);
    fake_cuda().forget_calls();
    EXPECT_THROW(gpu->copy_d2h_async(host, buffer.ptr(), gpu->default_stream()), DeviceError);
    EXPECT_EQ(fake_cuda().calls("cuStreamSynchronize"), 1);
  }
}

TEST_F(CudaFailure, PartOfACopyThatDidNotReachTheStagingPieceIsNotWrittenToTheHost) {
  const auto gpu = open_fake_backend();
  const gpu::DeviceBuffer buffer(*gpu, 64);
  std::vector<std::byte> host(64, std::byte{9});
  fake_cuda().fail("cuMemcpyDtoHAsync", 1, kNotReady);
  EXPECT_THROW(gpu->copy_d2h_async(host, buffer.ptr(), gpu->default_stream()), DeviceError);
  gpu->synchronize(gpu->default_stream());
  EXPECT_EQ(host, std::vector<std::byte>(64, std::byte{9}));
}

TEST_F(CudaFailure, PieceWhoseUseCannotBeTrackedIsNotTakenAgain) {
  const auto gpu = open_fake_backend();
  const gpu::DeviceBuffer buffer(*gpu, 64);
  gpu::HostFlag gate(*gpu);
  launch(*gpu, kernels::kWaitOnFlag, gpu->default_stream(), kernels::WaitOnFlagArgs{gate.address()});
  const std::vector<std::byte> ones(64, std::byte{1});
  const std::vector<std::byte> twos(64, std::byte{2});
  const gpu::Stream other = gpu::make_stream(*gpu);
  const gpu::DeviceBuffer elsewhere(*gpu, 64);

  fake_cuda().fail("cuEventRecord", 1, kNotReady);
  EXPECT_THROW(gpu->copy_h2d_async(buffer.ptr(), ones, gpu->default_stream()), DeviceError);
  for (int i = 0; i < 100; ++i) gpu->copy_h2d_async(elsewhere.ptr(), twos, other.ref());
  gate.raise();
  gpu->synchronize(gpu->default_stream());
  gpu->synchronize(other.ref());

  std::vector<std::byte> back(64);
  gpu->copy_d2h_on_stream(back, buffer.ptr(), gpu->default_stream());
  EXPECT_EQ(back, ones);
}

INSTANTIATE_TEST_SUITE_P(Operations, CudaFailures, testing::ValuesIn(kOperations),
                         [](const auto& operation) { return std::string(operation.param.name); });

}  // namespace
}  // namespace metrale::test
