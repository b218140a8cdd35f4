// SPDX-License-Identifier: Apache-2.0
// Products: out[rows][outs] = in[rows][ins] * weight[outs][ins] + bias by cuBLASLt, with the algorithms of
// each shape chosen once. Thread-safe. Allocates no device memory; may be used while a stream captures.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/linear/cublaslt_api.h"
#include "kernels/linear/cublaslt_choice.h"

namespace metrale::kernels::cublaslt {

// What an algorithm is chosen for: everything but the rows. Alignments are powers of two in bytes, at most
// kMostAlignment.
struct Shape {
  std::uint32_t ins = 0;
  std::uint32_t outs = 0;
  std::uint32_t in_stride = 0;  // elements
  std::uint32_t out_stride = 0;
  DataType in_type = DataType::kF32;  // of `weight` too
  DataType out_type = DataType::kF32;
  std::optional<DataType> bias_type;  // none: no bias
  std::uint32_t in_alignment = 0;
  std::uint32_t weight_alignment = 0;
  std::uint32_t out_alignment = 0;
  std::uint32_t bias_alignment = 0;
  std::uint32_t workspace_bytes = 0;
  auto operator<=>(const Shape&) const = default;
};
inline constexpr std::uint32_t kMostAlignment = 16;

// Device addresses; 0: none.
struct Operands {
  std::uint64_t in = 0;
  std::uint64_t weight = 0;
  std::uint64_t bias = 0;
  std::uint64_t out = 0;
  std::uint64_t in_scale = 0;      // float, a factor of the whole matrix
  std::uint64_t weight_scale = 0;  // float
  std::uint64_t workspace = 0;
};

// Of `address` and of every row, `stride_bytes` from each other.
[[nodiscard]] std::uint32_t alignment_of(std::uint64_t address, std::uint64_t stride_bytes);

struct ProductsOptions {
  std::uint32_t reference_rows = 64;  // that exact algorithms are ranked for
  std::uint32_t candidate = 0;        // which of the exact ones, see choose()
  bool adds_alike = false;            // is_known_to_add_alike() of library and device; BF16 profits
};

class Products {
 public:
  // The device's context is current, here and in the destructor. Throws DeviceError.
  Products(const Functions& functions, const ProductsOptions& options);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // One algorithm for every number of rows, or several that give the same bits. False, with nothing enqueued,
  // where cuBLASLt has none. Throws DeviceError.
  // `room`: rows that there is memory for, which may be computed too.
  [[nodiscard]] bool multiply_exact(const Shape& shape, const Operands& operands, std::uint32_t rows,
                                    std::uint32_t room, void* stream);
  // The algorithm that is thought best for about so many rows. Otherwise as multiply_exact.
  [[nodiscard]] bool multiply_fast(const Shape& shape, const Operands& operands, std::uint32_t rows,
                                   void* stream);
  // The context is lost: the destructor, which is next, leaves the library alone.
  void abandon() noexcept { handle_ = nullptr; }

 private:
  struct Plan {
    std::optional<Algorithm> algorithm;
    std::map<std::uint32_t, bool> fits;  // by rows, as far as asked
    Candidate facts;                     // of a reference
  };
  enum class Kind : std::uint8_t { kReference, kAlike, kFast };
  struct Key {
    Shape shape;
    Kind kind = Kind::kReference;
    std::uint32_t rows = 0;  // rounded up to a power of two; 0 for a reference
    auto operator<=>(const Key&) const = default;
  };

  [[nodiscard]] Plan make(const Key& key);
  [[nodiscard]] Plan make_reference(const Shape& shape) const;
  // For so many rows, with the bits of the shape's reference.
  [[nodiscard]] Plan make_alike(const Shape& shape, std::uint32_t rows, const Candidate& reference) const;
  [[nodiscard]] Plan make_fast(const Shape& shape, std::uint32_t rows) const;
  [[nodiscard]] std::vector<HeuristicResult> ask(const Shape& shape, std::uint32_t rows, bool split) const;
  // What the algorithm is, and whether it serves each of `rows`.
  [[nodiscard]] Candidate examine(const Shape& shape, const HeuristicResult& result,
                                  std::span<const std::uint32_t> rows) const;
  // What it needs for so many rows, or none where it does not serve them within the shape's workspace.
  [[nodiscard]] std::optional<HeuristicResult> check(const Shape& shape, const Algorithm& algorithm,
                                                     std::uint32_t rows) const;
  // The algorithm, and whether it serves `rows` rows. Made on first use.
  [[nodiscard]] std::pair<std::optional<Algorithm>, bool> plan(const Key& key, std::uint32_t rows);
  [[nodiscard]] Plan& find(const Key& key);  // under mutex_
  void enqueue(const Shape& shape, const Operands& operands, std::uint32_t rows, const Algorithm& algorithm,
               void* stream) const;

  const Functions* lt_;
  ProductsOptions options_;
  Handle handle_ = nullptr;
  std::mutex mutex_;  // of plans_
  std::map<Key, Plan> plans_;
};

}  // namespace metrale::kernels::cublaslt
