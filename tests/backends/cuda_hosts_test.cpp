// SPDX-License-Identifier: Apache-2.0
// Hosts, contexts of threads, and what counts as free memory.
#include <dlfcn.h>
#include <thread>

#include "backends/fake_cuda_test.h"

namespace metrale::test {
namespace {

namespace kernels = testing_kernels;

// The driver as PyTorch would use it beside the backend.
class OtherUser {
 public:
  OtherUser() {
    get_ = reinterpret_cast<Get>(
        ::dlsym(::dlopen(fake_cuda_library().c_str(), RTLD_NOW), "cuGetProcAddress_v2"));
  }
  template <class... Args>
  int call(const char* name, Args... args) const {
    void* found = nullptr;
    int status = 0;
    get_(name, &found, 12000, 0, &status);
    return reinterpret_cast<int (*)(Args...)>(found)(args...);
  }
  void* current() const {
    void* context = nullptr;
    EXPECT_EQ(call("cuCtxGetCurrent", &context), 0);
    return context;
  }
  void* retain(int device) const {
    void* context = nullptr;
    EXPECT_EQ(call("cuDevicePrimaryCtxRetain", &context, device), 0);
    return context;
  }

 private:
  using Get = int (*)(const char*, void**, int, std::uint64_t, int*);
  Get get_ = nullptr;
};

struct CudaHosts : FakeCudaTest {
  OtherUser other;
};

std::unique_ptr<gpu::GpuBackend> open_on(int ordinal) {
  return backends::make_cuda_backend(open_fake_host(ordinal), {}, fake_cuda_kernels());
}

std::uint64_t append_on(gpu::GpuBackend& gpu, std::uint64_t number) {
  const gpu::DeviceBuffer word(gpu, 8);
  gpu.memset_blocking(word.ptr(), 0, 8);
  launch(gpu, kernels::kAppend, gpu.default_stream(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = number});
  gpu.synchronize(gpu.default_stream());
  std::uint64_t value = 0;
  gpu.copy_d2h_blocking(std::as_writable_bytes(std::span(&value, 1)), word.ptr());
  return value;
}

TEST_F(CudaHosts, TwoDevicesWorkAtTheSameTime) {
  const auto one = open_on(0);
  const auto two = open_on(1);
  std::thread beside([&] { EXPECT_EQ(append_on(*two, 2), 2U); });
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(append_on(*one, i), i);
  beside.join();
  EXPECT_EQ(append_on(*two, 3), 3U);
  EXPECT_EQ(fake_cuda_live().contexts, 2);
}

TEST_F(CudaHosts, LossOfOneDeviceDoesNotTouchTheOther) {
  {
    const auto two = open_on(1);
    {
      const auto one = open_on(0);
      fake_cuda().lose_context(0);
      EXPECT_THROW(one->synchronize(one->default_stream()), DeviceError);
    }
    EXPECT_EQ(append_on(*two, 5), 5U);
  }
  EXPECT_EQ(fake_cuda_live().contexts, 0);
  fake_cuda().reset();
}

TEST_F(CudaHosts, ContextOfTheThreadStaysWhatItWas) {
  void* const theirs = other.retain(1);
  EXPECT_EQ(other.current(), nullptr);
  {
    const auto gpu = open_on(0);
    EXPECT_EQ(other.current(), nullptr);
    EXPECT_EQ(other.call("cuCtxSetCurrent", theirs), 0);
    EXPECT_EQ(append_on(*gpu, 4), 4U);
    EXPECT_THROW(gpu->free(DevicePtr(0x42)), InvalidArgument);
    EXPECT_GT(gpu->free_memory_bytes(), 0U);
    {
      const gpu::Stream stream = gpu::make_stream(*gpu);
      const gpu::Event event = gpu::make_event(*gpu);
      gpu::CaptureScope capture(*gpu, stream.ref());
      const gpu::Graph graph = capture.finish();
      gpu->launch_graph(graph.ref(), stream.ref());
    }
    EXPECT_EQ(other.current(), theirs);
    gpu->bind_to_thread();
    EXPECT_NE(other.current(), theirs);
    EXPECT_EQ(other.call("cuCtxSetCurrent", theirs), 0);
  }
  EXPECT_EQ(other.current(), theirs);
  EXPECT_EQ(other.call("cuCtxSetCurrent", static_cast<void*>(nullptr)), 0);
  EXPECT_EQ(other.call("cuDevicePrimaryCtxRelease", 1), 0);
}

// A host body as one that keeps a handle of a library, which is of the context that is current.
struct BodyWithHandle {
  explicit BodyWithHandle(const OtherUser& user, std::vector<void*>& ends)
      : driver(user), ended_in(ends), made_in(user.current()) {}
  ~BodyWithHandle() { ended_in.push_back(abandoned ? &ended_in : driver.current()); }
  BodyWithHandle(const BodyWithHandle&) = delete;
  BodyWithHandle& operator=(const BodyWithHandle&) = delete;
  void launch(gpu::CudaLaunch&, const kernels::EmptyArgs&) const {}
  void abandon() noexcept { abandoned = true; }

  const OtherUser& driver;
  std::vector<void*>& ended_in;  // the contexts; its own address for a body that was abandoned
  void* made_in;
  bool abandoned = false;
};

struct CudaHostBodies : CudaHosts {
  std::unique_ptr<gpu::GpuBackend> open() {
    gpu::CudaKernelTable table;
    table.add_module("test_vector", {.portable = fake_cuda_image(), .sm90a = {}});
    table.add_host(kernels::kEmpty, [this](gpu::CudaKernelContext&) {
      auto body = std::make_unique<BodyWithHandle>(other, ended_in);
      made_in = body->made_in;
      return body;
    });
    auto gpu = backends::make_cuda_backend(open_fake_host(0), {}, table);
    static_cast<void>(gpu->kernel("test_vector", "empty"));
    return gpu;
  }
  void* made_in = nullptr;
  std::vector<void*> ended_in;
};

TEST_F(CudaHostBodies, EndInTheContextThatTheyWereMadeIn) {
  open().reset();
  EXPECT_NE(made_in, nullptr);
  EXPECT_EQ(ended_in, std::vector<void*>{made_in});
  EXPECT_EQ(other.current(), nullptr);
}

TEST_F(CudaHostBodies, AreAbandonedOnceTheContextIsLost) {
  {
    const auto gpu = open();
    fake_cuda().lose_context(0);
    EXPECT_THROW(gpu->synchronize(gpu->default_stream()), DeviceError);
  }
  EXPECT_EQ(ended_in, std::vector<void*>{&ended_in});
  fake_cuda().reset();
}

TEST_F(CudaHosts, ContextThatSomebodyElseRetainsStays) {
  void* const theirs = other.retain(0);
  {
    const auto gpu = open_on(0);
    gpu->bind_to_thread();
    EXPECT_EQ(other.current(), theirs) << "it is the same one";
  }
  EXPECT_EQ(fake_cuda_live().contexts, 1);
  EXPECT_EQ(other.call("cuDevicePrimaryCtxRelease", 0), 0);
}

TEST_F(CudaHosts, BackendsOfOneHostShareItsStreamButNotTheirLedgers) {
  const auto host = open_fake_host();
  const auto one = backends::make_cuda_backend(host, {}, fake_cuda_kernels());
  const auto two = backends::make_cuda_backend(host, {}, fake_cuda_kernels());
  const gpu::DeviceBuffer word(*one, 8);
  one->memset_blocking(word.ptr(), 0, 8);

  launch(*one, kernels::kAppend, one->default_stream(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = 1});
  launch(*two, kernels::kAppend, two->default_stream(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = 2});
  two->synchronize(two->default_stream());

  std::uint64_t value = 0;
  one->copy_d2h_blocking(std::as_writable_bytes(std::span(&value, 1)), word.ptr());
  EXPECT_EQ(value, 33U);
  EXPECT_EQ(two->live_alloc_count(), 0U);
}

TEST_F(CudaHosts, EverybodyWhoOpensADeviceSharesItsHost) {
  const auto one = open_on(0);
  const int streams = fake_cuda_live().streams;
  const auto host = open_fake_host(0);
  EXPECT_EQ(fake_cuda_live().streams, streams) << "the default stream is there";
  EXPECT_EQ(fake_cuda_live().contexts, 1);
  EXPECT_EQ(open_fake_host(0), host);
  EXPECT_NE(open_fake_host(1), host);
  EXPECT_EQ(backends::list_cuda_devices(fake_cuda_library()).devices.size(), 2U);

  const auto two = open_on(0);
  const gpu::DeviceBuffer word(*one, 8);
  one->memset_blocking(word.ptr(), 0, 8);
  gpu::HostFlag gate(*one);
  launch(*one, kernels::kWaitOnFlag, one->default_stream(), kernels::WaitOnFlagArgs{gate.address()});
  launch(*one, kernels::kAppend, one->default_stream(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = 1});
  launch(*two, kernels::kAppend, two->default_stream(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = 2});
  gate.raise();
  two->synchronize(two->default_stream());

  std::uint64_t value = 0;
  one->copy_d2h_blocking(std::as_writable_bytes(std::span(&value, 1)), word.ptr());
  EXPECT_EQ(value, 33U) << "two's launch came after one's";
}

TEST_F(CudaHosts, LossOfTheContextIsKnownToEveryBackendOfTheDevice) {
  {
    const auto one = open_on(0);
    const auto two = open_on(0);
    fake_cuda().lose_context(0);
    EXPECT_THROW(one->synchronize(one->default_stream()), DeviceError);
    fake_cuda().forget_calls();

    EXPECT_THAT(gpu::message_of<DeviceError>([&] { static_cast<void>(two->alloc(64)); }),
                testing::HasSubstr("lost before"));
    EXPECT_THAT(gpu::message_of<DeviceError>([&] { static_cast<void>(open_on(0)); }),
                testing::HasSubstr("lost before"));

    EXPECT_EQ(fake_cuda().calls(nullptr), 0) << "nothing is called any more";
  }
  fake_cuda().reset();
  EXPECT_EQ(append_on(*open_on(0), 6), 6U) << "a new host";
}

TEST_F(CudaHosts, AHostEndsWithItsLastUserAndTheNextOneIsNew) {
  auto one = open_on(0);
  auto two = open_on(0);
  one.reset();
  EXPECT_EQ(append_on(*two, 7), 7U);
  two.reset();
  expect_nothing_alive();

  fake_cuda().forget_calls();
  const auto again = open_on(0);

  EXPECT_EQ(fake_cuda().calls("cuDevicePrimaryCtxRetain"), 1);
  EXPECT_EQ(append_on(*again, 8), 8U);
}

TEST_F(CudaHosts, ThreadsThatOpenADeviceAtOnceGetOneHost) {
  std::vector<std::shared_ptr<backends::CudaHost>> hosts(8);
  std::vector<std::thread> threads;
  for (auto& host : hosts) threads.emplace_back([&host] { host = open_fake_host(0); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& host : hosts) EXPECT_EQ(host, hosts.front());
  EXPECT_EQ(fake_cuda_live().contexts, 1);
}

// ---- free memory

TEST_F(CudaHosts, DiscreteDeviceHasFreeWhatItsDriverSays) {
  const auto gpu = open_on(0);
  fake_cuda().set_free_bytes(0, 12'345);
  EXPECT_EQ(gpu->free_memory_bytes(), 12'345U);
  EXPECT_EQ(gpu->device_free_memory_bytes(), 12'345U);
}

TEST_F(CudaHosts, IntegratedDeviceHasFreeWhatTheHostCanSpareToo) {
  fake_cuda().set_integrated(0, 1);
  const auto gpu = open_on(0);
  fake_cuda().set_free_bytes(0, 1);
  EXPECT_GT(gpu->free_memory_bytes(), std::uint64_t{1} << 20);
  EXPECT_EQ(gpu->device_free_memory_bytes(), 1U) << "the driver's own figure";
}

TEST_F(CudaHosts, LackOfDeviceMemorySaysWhatIsFreeAndTheTotal) {
  const auto gpu = open_on(0);
  fake_cuda().set_free_bytes(0, 1'000);
  const std::string message = gpu::message_of<OutOfMemory>([&] { static_cast<void>(gpu->alloc(2'000)); });
  EXPECT_THAT(message, testing::AllOf(testing::HasSubstr("2000"), testing::HasSubstr("1000"),
                                      testing::HasSubstr("1073741824")));
}

TEST_F(CudaHosts, TheSharedDefaultStreamDoesNotCapture) {
  const auto gpu = open_on(0);
  EXPECT_THROW(gpu->begin_capture(gpu->default_stream()), InvalidArgument);
  EXPECT_FALSE(gpu->stream_is_capturing(gpu->default_stream()));
  EXPECT_NO_THROW(gpu->synchronize(gpu->default_stream()));
}

TEST_F(CudaHosts, ABackendThatEndsInACaptureLeavesTheDeviceUsable) {
  const auto host = open_fake_host(0);
  {
    const auto gpu = backends::make_cuda_backend(host, {}, fake_cuda_kernels());
    gpu->begin_capture(gpu->create_stream());
  }
  const auto gpu = backends::make_cuda_backend(host, {}, fake_cuda_kernels());
  EXPECT_EQ(append_on(*gpu, 5), 5U);
}

}  // namespace
}  // namespace metrale::test
