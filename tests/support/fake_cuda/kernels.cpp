// SPDX-License-Identifier: Apache-2.0
// Host bodies of the kernels in conformance/test_kernels.cu, by the names of their symbols.
#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include <metrale/gpu/device_fault.h>

#include "conformance/test_kernels_args.h"
#include "support/fake_cuda/module.h"

namespace fake_cuda {
namespace {

using namespace metrale::testing_kernels;
using metrale::gpu::DeviceFault;
using metrale::gpu::DeviceFaultCode;

template <class T>
T* at(std::uint64_t address) {
  return reinterpret_cast<T*>(address);
}

void wait_until_raised(const Launch& launch, std::uint64_t flag) {
  const std::atomic_ref<std::uint32_t> raised(*at<std::uint32_t>(flag));
  while (raised.load() == 0 && !launch.lost->load()) std::this_thread::yield();
}

void scale(const Launch& launch) {
  const auto a = launch.param<ScaleArgs>(0);
  for (std::uint32_t i = 0; i < a.count; ++i) at<float>(a.data)[i] *= a.factor;
}

void add_from_device_counter(const Launch& launch) {
  const auto a = launch.param<AddArgs>(0);
  const std::uint32_t count = *at<std::uint32_t>(a.count);
  for (std::uint32_t i = 0; i < count; ++i) at<float>(a.data)[i] += static_cast<float>(a.value);
}

void fill(const Launch& launch) {
  const auto a = launch.param<FillArgs>(0);
  std::memset(at<std::byte>(a.address), static_cast<int>(a.value), a.count);
}

void append(const Launch& launch) {
  const auto a = launch.param<AppendArgs>(0);
  std::uint64_t& value = *at<std::uint64_t>(a.value);
  value = value * 31 + a.number;
}

void wait_on_flag(const Launch& launch) {
  wait_until_raised(launch, launch.param<WaitOnFlagArgs>(0).flag);
}

void meet(const Launch& launch) {
  const auto a = launch.param<MeetArgs>(0);
  std::atomic_ref<std::uint32_t>(*at<std::uint32_t>(a.mine)).store(1);
  wait_until_raised(launch, a.other);
}

void fail(const Launch& launch) {
  if (launch.fault_address == 0) return;
  auto& fault = *at<DeviceFault>(launch.fault_address);
  const std::atomic_ref code(fault.code);
  if (code.load() != DeviceFaultCode::kNone) return;
  fault.row = 0;
  fault.value = static_cast<std::int64_t>(launch.param<FailArgs>(0).code);
  code.store(DeviceFaultCode::kAsked);
}

void write_nowhere(const Launch& launch) {
  launch.lost->store(true);
}

void empty(const Launch&) {}

void foreign_sum(const Launch& launch) {
  const int* in = launch.param<const int*>(1);
  const int count = launch.param<int>(2);
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += in[i] * launch.param<unsigned char>(3);
  *launch.param<int*>(0) = sum;
}

}  // namespace

const Body* find_body(const std::string& name) {
  static const std::map<std::string, Body> bodies{
      {"scale", {{sizeof(ScaleArgs)}, scale}},
      {"add_from_device_counter", {{sizeof(AddArgs)}, add_from_device_counter}},
      {"fill", {{sizeof(FillArgs)}, fill}},
      {"append", {{sizeof(AppendArgs)}, append}},
      {"wait_on_flag", {{sizeof(WaitOnFlagArgs)}, wait_on_flag}},
      {"meet", {{sizeof(MeetArgs)}, meet}},
      {"fail", {{sizeof(FailArgs)}, fail}},
      {"write_nowhere", {{sizeof(EmptyArgs)}, write_nowhere}},
      {"empty", {{sizeof(EmptyArgs)}, empty}},
      {"foreign_sum", {{sizeof(int*), sizeof(const int*), sizeof(int), sizeof(unsigned char)}, foreign_sum}},
  };
  const auto found = bodies.find(name);
  return found == bodies.end() ? nullptr : &found->second;
}

}  // namespace fake_cuda
