// SPDX-License-Identifier: Apache-2.0
#include "conformance/test_kernels.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

namespace metrale::testing_kernels {
namespace {

template <class T>
T* at(std::uint64_t address) {
  return reinterpret_cast<T*>(address);
}

void wait_until_raised(std::uint64_t flag) {
  const std::atomic_ref<std::uint32_t> raised(*at<std::uint32_t>(flag));
  while (raised.load() == 0) std::this_thread::yield();
}

void scale(ThreadPool& pool, const ScaleArgs& args) {
  pool.parallel_for(args.count, 1024, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) at<float>(args.data)[i] *= args.factor;
  });
}

void add(ThreadPool&, const AddArgs& args) {
  const std::uint32_t count = *at<std::uint32_t>(args.count);
  for (std::uint32_t i = 0; i < count; ++i) at<float>(args.data)[i] += static_cast<float>(args.value);
}

void fill(ThreadPool&, const FillArgs& args) {
  std::memset(at<std::byte>(args.address), static_cast<int>(args.value), args.count);
}

void append(ThreadPool&, const AppendArgs& args) {
  std::uint64_t& value = *at<std::uint64_t>(args.value);
  value = value * 31 + args.number;
}

void wait_on_flag(ThreadPool&, const WaitOnFlagArgs& args) {
  wait_until_raised(args.flag);
}

void meet(ThreadPool&, const MeetArgs& args) {
  std::atomic_ref<std::uint32_t>(*at<std::uint32_t>(args.mine)).store(1);
  wait_until_raised(args.other);
}

void fail(ThreadPool&, const FailArgs& args) {
  throw std::runtime_error("asked to fail with " + std::to_string(args.code));
}

void empty(ThreadPool&, const EmptyArgs&) {}

}  // namespace

gpu::CpuKernelTable cpu_kernels() {
  gpu::CpuKernelTable table;
  table.add<scale>(kScale);
  table.add<add>(kAdd);
  table.add<fill>(kFill);
  table.add<append>(kAppend);
  table.add<wait_on_flag>(kWaitOnFlag);
  table.add<meet>(kMeet);
  table.add<fail>(kFail);
  table.add<empty>(kEmpty);
  return table;
}

}  // namespace metrale::testing_kernels
