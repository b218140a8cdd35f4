// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cublaslt.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>

#include "kernels/linear/args.h"
#include "kernels/linear_fp8/checks.h"

namespace metrale::kernels {
namespace {

using cublaslt::alignment_of;
using cublaslt::DataType;
using quant::ElementType;

DataType data_type(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return DataType::kF32;
    case ElementType::kBf16:
      return DataType::kBf16;
    case ElementType::kF16:
      return DataType::kF16;
  }
  throw InvalidArgument("no such element type");
}

// Null where the library is not there or does not start; `reason` says why.
std::unique_ptr<cublaslt::Products> open_products(const cublaslt::Library& library,
                                                  const cublaslt::ProductsOptions& options,
                                                  std::string& reason) {
  reason = library.reason;
  if (library.functions == nullptr) return nullptr;
  try {
    return std::make_unique<cublaslt::Products>(*library.functions, options);
  } catch (const DeviceError& error) {
    reason = error.what();
    return nullptr;
  }
}

// One type for both sides, and the result in it or in FP32.
bool is_served(const LinearArgs& a) {
  return a.in_type == a.weight_type && (a.out_type == a.in_type || a.out_type == ElementType::kF32);
}

cublaslt::Shape shape_of(const LinearArgs& a) {
  const std::uint64_t in_bytes = element_bytes(a.in_type);
  cublaslt::Shape shape{
      .ins = a.in_features,
      .outs = a.out_features,
      .in_stride = a.in_stride,
      .out_stride = a.out_stride,
      .in_type = data_type(a.in_type),
      .out_type = data_type(a.out_type),
      .bias_type = std::nullopt,
      .in_alignment = alignment_of(a.in, a.in_stride * in_bytes),
      .weight_alignment = alignment_of(a.weight, a.in_features * in_bytes),
      .out_alignment = alignment_of(a.out, std::uint64_t{a.out_stride} * element_bytes(a.out_type)),
      .bias_alignment = 0,
      .workspace_bytes = a.workspace == 0 ? 0 : a.workspace_bytes};
  if (a.bias != 0) {
    shape.bias_type = data_type(a.weight_type);
    shape.bias_alignment = alignment_of(a.bias, 0);
  }
  return shape;
}

}  // namespace

cublaslt::ProductsOptions products_options(const CudaKernelOptions& options, const cublaslt::Library& library,
                                           const gpu::CudaDeviceFacts& device) {
  const bool adds_alike = library.functions != nullptr &&
                          cublaslt::is_known_to_add_alike(library.functions->version(), device.compute_major,
                                                          device.compute_minor);
  return {.reference_rows = options.linear_reference_rows,
          .candidate = options.linear_candidate,
          .adds_alike = adds_alike};
}

CublasLtLinear::CublasLtLinear(const cublaslt::Library& library, const cublaslt::ProductsOptions& options,
                               Order order, LinearFallback fallback)
    : order_(order), fallback_(std::move(fallback)) {
  std::string reason;
  products_ = open_products(library, options, reason);
  if (!products_ && library.is_wanted && order == Order::kExact) {
    log().warn("linear layers are computed by the embedded kernels, without cuBLASLt: {}", reason);
  }
}

void CublasLtLinear::launch(gpu::CudaLaunch& to, const LinearArgs& args) {
  check_linear(order_ == Order::kExact ? kLinear.function : kLinearFast.function, args);
  if (args.max_rows == 0 || args.out_features == 0) return;
  if (products_ && is_served(args)) {
    const cublaslt::Shape shape = shape_of(args);
    const cublaslt::Operands operands{.in = args.in,
                                      .weight = args.weight,
                                      .bias = args.bias,
                                      .out = args.out,
                                      .in_scale = 0,
                                      .weight_scale = 0,
                                      .workspace = args.workspace};
    const bool done =
        order_ == Order::kExact
            ? products_->multiply_exact(shape, operands, args.max_rows, args.room_rows, to.stream())
            : products_->multiply_fast(shape, operands, args.max_rows, to.stream());
    if (done) return;
  }
  fallback_(to, args);
}

CublasLtLinearFp8::CublasLtLinearFp8(const cublaslt::Library& library,
                                     const cublaslt::ProductsOptions& options) {
  products_ = open_products(library, options, reason_);
}

void CublasLtLinearFp8::launch(gpu::CudaLaunch& to, const LinearFp8Args& args) {
  check_linear_fp8(kLinearFp8.function, args);
  if (!products_) {
    throw Unsupported("linear_fp8 on CUDA", fmt::format("products without cuBLASLt: {}", reason_));
  }
  if (args.max_rows == 0 || args.out_features == 0) return;
  const cublaslt::Shape shape{
      .ins = args.in_features,
      .outs = args.out_features,
      .in_stride = args.in_features,
      .out_stride = args.out_stride,
      .in_type = DataType::kE4m3,
      .out_type = data_type(args.out_type),
      .bias_type = std::nullopt,
      .in_alignment = alignment_of(args.in, args.in_features),
      .weight_alignment = alignment_of(args.weight, args.in_features),
      .out_alignment = alignment_of(args.out, std::uint64_t{args.out_stride} * element_bytes(args.out_type)),
      .bias_alignment = 0,
      .workspace_bytes = args.workspace == 0 ? 0 : args.workspace_bytes};
  const cublaslt::Operands operands{.in = args.in,
                                    .weight = args.weight,
                                    .bias = 0,
                                    .out = args.out,
                                    .in_scale = args.in_factor,
                                    .weight_scale = args.weight_factor,
                                    .workspace = args.workspace};
  if (!products_->multiply_exact(shape, operands, args.max_rows, args.max_rows, to.stream())) {
    throw Unsupported("linear_fp8 on CUDA",
                      fmt::format("a product of {} x {} to {} on this device: cuBLASLt has no algorithm for "
                                  "it (FP8 needs compute capability 8.9)",
                                  args.out_features, args.in_features, to_string(args.out_type)));
  }
}

}  // namespace metrale::kernels
