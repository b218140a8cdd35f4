// SPDX-License-Identifier: Apache-2.0
// Writing safetensors files, byte for byte as the reference implementation does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <metrale/weights/dtype.h>

namespace metrale::weights {

// `bytes` is row-major and little-endian; its size is what dtype and shape say.
struct TensorData {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
};

// A tensor without its data, for a writer that makes them piece by piece.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
};

using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

struct SafetensorsLayout {
  std::string prefix;              // the length and the JSON header, padded to a multiple of 8 bytes
  std::vector<std::size_t> order;  // positions in `tensors`: how their data follow, without gaps
};

// Types in descending order, then names in ascending order of their bytes: every tensor is aligned to its
// element. Throws InvalidArgument naming the tensor: a name that is used twice, `__metadata__` or not UTF-8;
// bytes that do not match type and shape; a header over kMaxHeaderBytes.
[[nodiscard]] SafetensorsLayout lay_out_safetensors(std::span<const TensorData> tensors,
                                                    const SafetensorsMetadata& metadata = {});
[[nodiscard]] SafetensorsLayout lay_out_tensor_specs(std::span<const TensorSpec> tensors,
                                                     const SafetensorsMetadata& metadata = {});

// Writes a file beside `path`, syncs it and renames it to `path`: readers see the old file or the new one,
// whole. After an error (IoError, InvalidArgument) `path` is as it was and nothing else is left.
void write_safetensors(const std::string& path, std::span<const TensorData> tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace metrale::weights
