// SPDX-License-Identifier: Apache-2.0
#include "weights/chunk_reads.h"

#include <algorithm>
#include <cstring>

#include <metrale/base/checked.h>

namespace metrale::weights {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) {
  return value / unit * unit;
}

}  // namespace

ChunkReads::ChunkReads(const Chunk& chunk, const LoadShard& shard, std::byte* staging) {
  if (chunk.place != nullptr) {
    read_in_place(chunk, shard, staging);
  } else {
    read_staged(chunk, shard, staging);
  }
}

bool ChunkReads::fits_place(const Chunk& chunk, const LoadShard& shard) {
  if (chunk.place == nullptr || shard.is_mapped()) return false;
  if (!shard.is_direct()) return true;
  const std::uint64_t begin = round_up(chunk.begin, shard.alignment);
  const std::uint64_t end = round_down(chunk.end, shard.alignment);
  const auto address = reinterpret_cast<std::uintptr_t>(chunk.place) + (begin - chunk.begin);
  return begin < end && address % shard.memory_alignment == 0;
}

std::uint64_t ChunkReads::staging_bytes(const Chunk& chunk, const LoadShard& shard) {
  const std::uint64_t unit = round_up(shard.alignment, kPageBytes);
  return chunk.place != nullptr ? 2 * unit : round_up(chunk.end - chunk.begin + 2 * unit, kPageBytes);
}

void ChunkReads::read_staged(const Chunk& chunk, const LoadShard& shard, std::byte* staging) {
  if (!shard.is_direct()) {
    bytes_ = staging;
    add({false, chunk.begin, chunk.end, staging});
    return;
  }
  // The file's last bytes fill no whole unit of direct I/O: the other descriptor reads them.
  const std::uint64_t unit = shard.alignment;
  const std::uint64_t whole = round_down(shard.size_bytes, unit);
  const std::uint64_t begin = round_down(chunk.begin, unit);
  const std::uint64_t end = std::min(round_up(chunk.end, unit), std::max(whole, begin));
  bytes_ = staging + (chunk.begin - begin);
  add({true, begin, end, staging});
  add({false, end, chunk.end, staging + (end - begin)});
}

void ChunkReads::read_in_place(const Chunk& chunk, const LoadShard& shard, std::byte* staging) {
  bytes_ = chunk.place;
  if (!shard.is_direct()) {
    add({false, chunk.begin, chunk.end, chunk.place});
    return;
  }
  const std::uint64_t unit = shard.alignment;
  const std::uint64_t begin = round_up(chunk.begin, unit);
  const std::uint64_t end = round_down(chunk.end, unit);
  std::byte* const place = chunk.place;
  add({true, begin, end, place + (begin - chunk.begin)});
  if (chunk.begin < begin) {
    add({true, begin - unit, begin, staging});
    head_ = {place, staging + unit - (begin - chunk.begin), begin - chunk.begin};
  }
  if (end < chunk.end) {
    std::byte* const memory = staging + round_up(unit, kPageBytes);
    const bool is_whole = end + unit <= shard.size_bytes;
    add({is_whole, end, is_whole ? end + unit : chunk.end, memory});
    tail_ = {place + (end - chunk.begin), memory, chunk.end - end};
  }
}

void ChunkReads::add(const ReadPart& part) {
  if (part.begin < part.end) parts_[count_++] = part;
}

void ChunkReads::finish() const {
  if (head_.bytes != 0) std::memcpy(head_.to, head_.from, head_.bytes);
  if (tail_.bytes != 0) std::memcpy(tail_.to, tail_.from, tail_.bytes);
}

}  // namespace metrale::weights
