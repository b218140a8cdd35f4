// SPDX-License-Identifier: Apache-2.0
// What is read: the loads of each file in the order of their bytes, cut into chunks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <metrale/weights/loader.h>

namespace metrale::weights {

// Bytes of a file that are read at once. Elements are whole within a chunk.
struct Chunk {
  std::uint32_t file = 0;   // of the directory
  std::uint64_t begin = 0;  // in the file
  std::uint64_t end = 0;
  std::size_t first_load = 0;  // position in LoadList::order of the first load with bytes here
  // Where the bytes from `begin` on belong, all of them side by side; null: to several places, or to none
  // that can be read into.
  std::byte* place = nullptr;
};

// Loads by file and offset.
struct LoadList {
  struct Entry {
    std::size_t load = 0;
    std::uint32_t file = 0;
    std::uint64_t begin = 0;  // in the file
    std::uint64_t end = 0;
    std::byte* memory = nullptr;  // the sink's place() for the first byte
    std::byte* place = nullptr;   // the same, where it can be read into
  };
  std::vector<Entry> order;        // those with bytes
  std::vector<std::size_t> empty;  // positions of loads without
  std::uint64_t total_bytes = 0;
};

// Throws InvalidArgument for a range outside its tensor or with half an element, and for loads that overlap.
[[nodiscard]] LoadList order_loads(const ModelDirectory& directory, std::span<const TensorLoad> loads,
                                   const PieceSink& sink);

struct ChunkShape {
  std::uint64_t chunk_bytes = 0;   // the aim: a chunk ends at a multiple of alignment, or an element later
  std::uint64_t alignment = 4096;  // of cuts within a tensor
};
inline constexpr std::uint64_t kMostElementBytes = 8;
// Unwanted bytes between two loads that are read rather than skipped.
inline constexpr std::uint64_t kReadGapBytes = std::uint64_t{256} << 10;
// A tensor of so much that lies elsewhere in memory than in line with the one before it in the file begins a
// chunk of its own; smaller ones are not worth a read each.
inline constexpr std::uint64_t kOwnChunkBytes = std::uint64_t{128} << 10;

// Calls visit(entry, begin, end) for the loads that have bytes in a chunk, with those bytes.
template <class Visit>
void for_each_load(const LoadList& list, const Chunk& chunk, Visit&& visit) {
  for (std::size_t i = chunk.first_load; i < list.order.size(); ++i) {
    const LoadList::Entry& entry = list.order[i];
    if (entry.file != chunk.file || entry.begin >= chunk.end) break;
    visit(entry, std::max(entry.begin, chunk.begin), std::min(entry.end, chunk.end));
  }
}

// The places that the sink gave, in the order in which chunks fill them; ranges may share a page.
[[nodiscard]] std::vector<std::span<std::byte>> memory_of(const LoadList& list,
                                                          std::span<const Chunk> chunks);

// The chunks of every file, one file after the other; with `files_at_once` more than one, files take turns.
[[nodiscard]] std::vector<Chunk> cut_chunks(std::span<const TensorLoad> loads, const LoadList& list,
                                            const ChunkShape& shape, unsigned files_at_once);

}  // namespace metrale::weights
