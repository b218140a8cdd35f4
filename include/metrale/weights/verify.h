// SPDX-License-Identifier: Apache-2.0
// verify_weights: every rule of the format over a whole model, and its bytes against a manifest. Where
// opening a model ends at the first thing that is wrong, this lists all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <metrale/weights/manifest.h>

namespace metrale::weights {

struct VerifyOptions {
  const WeightManifest* manifest = nullptr;  // what the model should be
  bool read_data = true;                     // else headers and sizes only
  unsigned threads = 0;                      // 0: one for each usable processor; each holds 8 MiB
  // Called from one thread at a time with the bytes of data read so far and in all; a false return stops with
  // Cancelled.
  std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress = {};
};

struct VerifyReport {
  std::vector<WeightProblem> problems;  // by file, in the order of the data
  std::vector<std::string> warnings;    // what opening the model would log
  WeightManifest found;  // what is there; whole where there are no problems of kinds kFormat and kIo
  std::uint64_t tensors = 0;
  std::uint64_t data_bytes = 0;  // of all tensors
  std::uint64_t read_bytes = 0;  // of data, as many as were hashed
};

// Blocking. `path` as ModelDirectory::open takes it. Problems of the model are in the result; throws
// InvalidArgument and IoError where there is no model to look at, Cancelled, OutOfMemory.
[[nodiscard]] VerifyReport verify_weights(const std::string& path, const VerifyOptions& options = {});

}  // namespace metrale::weights
