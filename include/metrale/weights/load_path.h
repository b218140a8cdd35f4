// SPDX-License-Identifier: Apache-2.0
// LoadPath: how the bytes of a shard come into memory, and why that way. docs/weights.md compares them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <metrale/io/file_calls.h>

namespace metrale::weights {

enum class LoadPath : std::uint8_t {
  kAuto,      // what choose_load_path() says for each file
  kDirect,    // past the page cache, many large reads in flight
  kBuffered,  // through the page cache, many large reads in flight
  kMap,       // a mapping of the file: a page fault for every page that is not there
};
// "auto", "direct", "buffered", "mmap".
[[nodiscard]] std::string_view to_string(LoadPath path);
[[nodiscard]] std::optional<LoadPath> parse_load_path(std::string_view name);

struct LoadPathChoice {
  LoadPath path = LoadPath::kAuto;  // never kAuto in an answer
  std::string reason;               // a clause: "it lies in memory already"
  bool in_memory = false;           // the file, or most of it
};
// For one file of `size_bytes`: buffered where it lies in memory already (a memory file system, or most of it
// in the page cache), or where direct I/O is not to be had; else direct. Throws IoError where the file cannot
// be opened at all.
[[nodiscard]] LoadPathChoice choose_load_path(const std::string& path, std::uint64_t size_bytes,
                                              io::FileCalls& calls = io::system_file_calls());

}  // namespace metrale::weights
