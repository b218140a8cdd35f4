// SPDX-License-Identifier: Apache-2.0
// Calls the CPU body of a kernel by its id, as the CPU backend does, on memory of the test.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include <metrale/base/thread_pool.h>
#include <metrale/gpu/cpu_kernel_table.h>
#include <metrale/kernels/cpu_kernels.h>
#include <metrale/quant/element_type.h>
#include <metrale/quant/float_convert.h>

namespace metrale::kernels {

inline const gpu::CpuKernelTable& kernel_table() {
  static const gpu::CpuKernelTable table = [] {
    gpu::CpuKernelTable filled;
    register_cpu_kernels(filled);
    return filled;
  }();
  return table;
}

template <class Args>
void run_kernel(ThreadPool& pool, const gpu::KernelId<Args>& id, const Args& args) {
  const auto* entry = kernel_table().find(id.module, id.function);
  if (entry == nullptr || entry->args_bytes != sizeof(Args)) throw std::logic_error("no such CPU kernel");
  entry->body(pool, &args);
}

inline ThreadPool& test_pool() {
  static ThreadPool pool(2);
  return pool;
}

template <class T>
std::uint64_t address(const T* data) {
  return std::bit_cast<std::uint64_t>(data);
}
template <class T>
std::uint64_t address(const std::vector<T>& data) {
  return address(data.data());
}

// An array of any element type, filled from and read as float by the scalar conversions. The bytes lie in a
// vector of exactly their size, so that AddressSanitizer sees a read beyond the end.
class Elements {
 public:
  Elements(quant::ElementType type, std::size_t count)
      : type_(type), bytes_(count * quant::element_bytes(type)) {}
  Elements(quant::ElementType type, const std::vector<float>& values) : Elements(type, values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }

  void set(std::size_t index, float value) {
    if (type_ == quant::ElementType::kF32) {
      std::memcpy(bytes_.data() + index * 4, &value, 4);
      return;
    }
    const std::uint16_t bits =
        type_ == quant::ElementType::kBf16 ? quant::float_to_bf16(value) : quant::float_to_f16(value);
    std::memcpy(bytes_.data() + index * 2, &bits, 2);
  }
  // The element's bits: the low half of `bits` for the 16-bit types.
  void set_bits(std::size_t index, std::uint32_t bits) {
    const std::size_t size = quant::element_bytes(type_);
    std::memcpy(bytes_.data() + index * size, &bits, size);
  }
  [[nodiscard]] float get(std::size_t index) const {
    if (type_ == quant::ElementType::kF32) {
      float value = 0;
      std::memcpy(&value, bytes_.data() + index * 4, 4);
      return value;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes_.data() + index * 2, 2);
    return type_ == quant::ElementType::kBf16 ? quant::bf16_to_float(bits) : quant::f16_to_float(bits);
  }
  [[nodiscard]] std::vector<float> floats() const {
    std::vector<float> values(size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = get(i);
    return values;
  }

  [[nodiscard]] std::size_t size() const { return bytes_.size() / quant::element_bytes(type_); }
  [[nodiscard]] quant::ElementType type() const { return type_; }
  [[nodiscard]] std::uint64_t address() const { return kernels::address(bytes_.data()); }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  quant::ElementType type_;
  std::vector<std::byte> bytes_;
};

inline constexpr quant::ElementType kAllTypes[] = {quant::ElementType::kF32, quant::ElementType::kBf16,
                                                   quant::ElementType::kF16};

// The largest relative error of rounding to nearest.
[[nodiscard]] inline double rounding_error(quant::ElementType type) {
  switch (type) {
    case quant::ElementType::kF32:
      return 0x1p-24;
    case quant::ElementType::kBf16:
      return 0x1p-8;
    case quant::ElementType::kF16:
      return 0x1p-11;
  }
  throw std::logic_error("unknown type");
}

// The largest error of rounding `value` to `type`; halves lose bits below their normal range.
[[nodiscard]] inline double rounding_bound(quant::ElementType type, double value) {
  return std::abs(value) * 1.01 * rounding_error(type) + (type == quant::ElementType::kF16 ? 0x1p-25 : 0.0);
}

[[nodiscard]] inline std::vector<float> random_normal(std::mt19937& random, std::size_t count,
                                                      float deviation = 1.0F) {
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace metrale::kernels
