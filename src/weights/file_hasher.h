// SPDX-License-Identifier: Apache-2.0
// FileHasher: the hashes of a file's tensors, read in pieces of bounded size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <metrale/base/thread_pool.h>
#include <metrale/weights/manifest.h>
#include <metrale/weights/safetensors.h>

namespace metrale::weights {

// What is read at once, by each thread.
inline constexpr std::size_t kHashPieceBytes = std::size_t{8} << 20;

// Blocking. The header and, where `read_data`, every tensor; a part that cannot be read becomes a problem and
// the rest is read on. `on_read(bytes)` comes from one thread at a time and may throw, which ends it.
[[nodiscard]] ManifestFile hash_file(const SafetensorsFile& file, const std::string& name, bool read_data,
                                     ThreadPool& pool, const std::function<void(std::uint64_t)>& on_read,
                                     std::vector<WeightProblem>& problems);

}  // namespace metrale::weights
