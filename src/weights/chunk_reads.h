// SPDX-License-Identifier: Apache-2.0
// How a chunk is read: the ranges of its file, the descriptor for each, and the memory that each goes to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "weights/load_chunks.h"
#include "weights/load_shards.h"

namespace metrale::weights {

struct ReadPart {
  bool is_direct = false;
  std::uint64_t begin = 0;  // in the file
  std::uint64_t end = 0;
  std::byte* to = nullptr;
};

class ChunkReads {
 public:
  static constexpr std::size_t kMostParts = 3;

  ChunkReads() = default;
  // Into the chunk's place where it has one, else into `staging`, which has staging_bytes() for it.
  ChunkReads(const Chunk& chunk, const LoadShard& shard, std::byte* staging);

  [[nodiscard]] auto begin() const { return parts_.begin(); }
  [[nodiscard]] auto end() const { return parts_.begin() + count_; }
  // The chunk's first byte, once every part was read and finish() called.
  [[nodiscard]] const std::byte* bytes() const { return bytes_; }
  // Brings into the place what was read beside it.
  void finish() const;

  // The chunk's bytes can be read where they belong: what lies between whole units of direct reads is as
  // aligned in memory as those must be.
  [[nodiscard]] static bool fits_place(const Chunk& chunk, const LoadShard& shard);
  // A multiple of 4096.
  [[nodiscard]] static std::uint64_t staging_bytes(const Chunk& chunk, const LoadShard& shard);

 private:
  // Bytes at an end of a chunk with a place that fill no unit.
  struct Edge {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };

  void read_staged(const Chunk& chunk, const LoadShard& shard, std::byte* staging);
  void read_in_place(const Chunk& chunk, const LoadShard& shard, std::byte* staging);
  void add(const ReadPart& part);

  std::array<ReadPart, kMostParts> parts_;
  std::size_t count_ = 0;
  const std::byte* bytes_ = nullptr;
  Edge head_;
  Edge tail_;
};

}  // namespace metrale::weights
