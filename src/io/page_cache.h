// SPDX-License-Identifier: Apache-2.0
// How much of an open file lies in the page cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace metrale::io {

// Exact: cachestat(2), Linux 6.5. nullopt where the kernel lacks it or does not answer this process.
[[nodiscard]] std::optional<std::uint64_t> cachestat_bytes(int fd, std::uint64_t size_bytes);
// Exact, page by page: mincore(2). nullopt where it would not answer: who neither owns nor may write a file
// is told that all of it is there. Throws IoError.
[[nodiscard]] std::optional<std::uint64_t> mincore_bytes(int fd, std::uint64_t size_bytes,
                                                         const std::string& path);
// An estimate that anyone gets: of some pages at random places, as many as can be read without waiting. Those
// that cannot are then read ahead. 0 where the file system does not say.
[[nodiscard]] std::uint64_t probed_bytes(int fd, std::uint64_t size_bytes);

}  // namespace metrale::io
