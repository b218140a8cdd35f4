// SPDX-License-Identifier: Apache-2.0
// What every CPU body does first with its arguments: device addresses become pointers (on the CPU backend
// device memory is host memory), and counts and types are checked before anything is written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <metrale/quant/element_type.h>
#include <metrale/quant/kv_format.h>

namespace metrale::kernels {

template <class T>
[[nodiscard]] T* host_ptr(std::uint64_t address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

// The number of rows that `rows` holds at this moment. Throws InvalidArgument where it exceeds `max_rows`.
[[nodiscard]] std::uint32_t read_rows(std::string_view kernel, std::uint64_t rows, std::uint32_t max_rows);

// Throws Unsupported unless `type` is one of ElementType's values.
void check_type(std::string_view kernel, quant::ElementType type);

// Throws Unsupported unless `format` is one of KvFormat's values and has vectors of `head_dim`, which kernels
// serve up to quant::kKvMaxHeadDim.
void check_kv_format(std::string_view kernel, quant::KvFormat format, std::uint32_t head_dim);

// Throws InvalidArgument for blocks of no tokens, and for values of turbo3 in blocks that cut its eight
// tokens.
void check_block_size(std::string_view kernel, std::uint32_t block_size, quant::KvFormat v_format);

// Throws Unsupported unless CUDA has kernels for `format`.
void check_cuda_kv_format(std::string_view kernel, quant::KvFormat format);

// Rows per task, so that a task touches about 16 thousand elements.
[[nodiscard]] inline std::size_t row_grain(std::size_t width) {
  return std::max<std::size_t>(1, 16384 / std::max<std::size_t>(1, width));
}

}  // namespace metrale::kernels
