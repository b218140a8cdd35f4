// SPDX-License-Identifier: Apache-2.0
// oneDNN's matrix product, found when it is first asked for (libdnnl.so.2): an optional library, for products
// whose order of addition does not matter.
#pragma once

#include <cstdint>

#include <metrale/quant/element_type.h>

namespace metrale::kernels::linear {

// out[rows][outs] = in[rows][ins] * weight[outs][ins] + bias[outs]; strides in elements, bias may be null.
struct Product {
  std::int64_t rows;
  std::int64_t ins;
  std::int64_t outs;
  std::int64_t in_stride;
  std::int64_t out_stride;
  quant::ElementType type;  // of activations and weights
  quant::ElementType out_type;
  const void* in;
  const void* weight;
  const void* bias;
  void* out;
};

// The library is there, and has this product.
[[nodiscard]] bool onednn_has(quant::ElementType in, quant::ElementType weight, quant::ElementType out);

// On the calling thread alone. Throws DeviceError where the library fails. Only where onednn_has().
void onednn_multiply(const Product& product);

}  // namespace metrale::kernels::linear
