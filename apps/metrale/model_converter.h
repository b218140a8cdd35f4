// SPDX-License-Identifier: Apache-2.0
// What `metrale convert` does: a model directory again, with other element types or other files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <metrale/quant/element_type.h>

namespace metrale::app {

struct ConvertOptions {
  std::optional<quant::ElementType> dtype;       // of F64, F32, BF16 and F16 tensors; others stay as they are
  std::vector<std::string> keep;                 // patterns of names of tensors that stay as they are
  std::optional<std::uint64_t> max_shard_bytes;  // absent: the files of the source
  bool replace = false;
  // Called with the bytes written so far and in all; a false return stops with Cancelled.
  std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress;
};

// Finite values that were too large for the new type.
struct Overflow {
  std::string tensor;
  std::uint64_t values = 0;
};

struct ConvertReport {
  std::vector<std::string> files;   // of weights
  std::vector<std::string> copied;  // beside them
  std::uint64_t tensors = 0;
  std::uint64_t converted = 0;  // tensors whose type changed
  std::uint64_t bytes = 0;      // of tensors, as written
  std::vector<Overflow> overflows;
  std::vector<std::string> warnings;
};

// Blocking. `out` appears as ModelStaging makes it; after a failure nothing of it is left. Memory is bounded
// whatever the tensors' sizes. Throws InvalidArgument (also where `out` is the source's directory), IoError,
// FormatError, Cancelled.
[[nodiscard]] ConvertReport convert_model(const std::string& in, const std::string& out,
                                          const ConvertOptions& options);

}  // namespace metrale::app
