// SPDX-License-Identifier: Apache-2.0
#include "weights/load_chunks.h"

#include <algorithm>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>

namespace metrale::weights {
namespace {

std::uint64_t element_bytes(const TensorLoad& load) {
  const unsigned in_bits = bits(load.tensor.info().dtype);
  return in_bits % 8 == 0 ? in_bits / 8 : 1;
}

void check_range(const TensorLoad& load) {
  const TensorInfo& info = load.tensor.info();
  const std::uint64_t element = element_bytes(load);
  if (load.begin_bytes > info.size_bytes || load.size_bytes > info.size_bytes - load.begin_bytes ||
      load.begin_bytes % element != 0 || load.size_bytes % element != 0) {
    throw InvalidArgument(fmt::format(
        "bytes [{}, +{}) of tensor '{}' ({} of {} bytes) are not whole elements of it", load.begin_bytes,
        load.size_bytes, printable_name(info.name), to_string(info.dtype), info.size_bytes));
  }
}

// Cuts the loads [first, last) of one file.
class Cutter {
 public:
  Cutter(std::span<const TensorLoad> loads, const LoadList& list, const ChunkShape& shape,
         std::vector<Chunk>& chunks)
      : loads_(loads), list_(list), shape_(shape), chunks_(chunks) {}

  void cut(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) add(i);
    close();
  }

 private:
  void add(std::size_t i) {
    const LoadList::Entry& entry = list_.order[i];
    if (is_open_ && entry.begin - open_.end > kReadGapBytes) close();
    if (is_open_ && !is_in_line(entry)) {
      if (std::max(open_.end - open_.begin, entry.end - entry.begin) >= kOwnChunkBytes) {
        close();
      } else {
        open_.place = nullptr;
      }
    }
    if (!is_open_) open(i, entry.begin);
    for (;;) {
      // The next cut at a multiple of the alignment, so that chunks share no bytes that are read twice.
      const std::uint64_t aim = (open_.begin + shape_.chunk_bytes) / shape_.alignment * shape_.alignment;
      if (entry.end <= aim) break;
      if (aim <= entry.begin) {
        close();
        open(i, entry.begin);
        continue;
      }
      const std::uint64_t cut = entry.begin + round_up(aim - entry.begin, element_bytes(loads_[entry.load]));
      if (cut >= entry.end) break;
      open_.end = cut;
      close();
      open(i, cut);
    }
    open_.end = entry.end;
  }
  // The entry's bytes follow those of the open chunk, in the file and in memory.
  [[nodiscard]] bool is_in_line(const LoadList::Entry& entry) const {
    if (open_.place == nullptr) return entry.place == nullptr;
    return entry.begin == open_.end && entry.place == open_.place + (open_.end - open_.begin);
  }
  void open(std::size_t i, std::uint64_t begin) {
    const LoadList::Entry& entry = list_.order[i];
    open_ = {.file = entry.file,
             .begin = begin,
             .end = begin,
             .first_load = i,
             .place = entry.place == nullptr ? nullptr : entry.place + (begin - entry.begin)};
    is_open_ = true;
  }
  void close() {
    if (is_open_) chunks_.push_back(open_);
    is_open_ = false;
  }

  std::span<const TensorLoad> loads_;
  const LoadList& list_;
  const ChunkShape& shape_;
  std::vector<Chunk>& chunks_;
  Chunk open_;
  bool is_open_ = false;
};

}  // namespace

LoadList order_loads(const ModelDirectory& directory, std::span<const TensorLoad> loads,
                     const PieceSink& sink) {
  LoadList list;
  list.order.reserve(loads.size());
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const TensorLoad& load = loads[i];
    check_range(load);
    if (load.size_bytes == 0) {
      list.empty.push_back(i);
      continue;
    }
    const std::uint64_t begin = load.tensor.info().offset_bytes + load.begin_bytes;
    std::byte* const memory = sink.place(i, load.size_bytes);
    list.order.push_back({i, load.tensor.file_index(), begin, begin + load.size_bytes, memory, memory});
    list.total_bytes += load.size_bytes;
  }
  const auto by_place = [](const LoadList::Entry& a, const LoadList::Entry& b) {
    return a.file != b.file ? a.file < b.file : a.begin < b.begin;
  };
  if (!std::is_sorted(list.order.begin(), list.order.end(), by_place)) {
    std::sort(list.order.begin(), list.order.end(), by_place);
  }
  for (std::size_t i = 1; i < list.order.size(); ++i) {
    const LoadList::Entry& before = list.order[i - 1];
    const LoadList::Entry& entry = list.order[i];
    if (before.file == entry.file && entry.begin < before.end) {
      throw InvalidArgument(fmt::format("two loads ask for byte {} of '{}'", entry.begin,
                                        directory.files()[entry.file].path()));
    }
  }
  return list;
}

std::vector<std::span<std::byte>> memory_of(const LoadList& list, std::span<const Chunk> chunks) {
  constexpr std::uintptr_t kPageBytes = 4096;  // a smaller gap holds no page of its own
  std::vector<std::span<std::byte>> memory;
  for (const Chunk& chunk : chunks) {
    for_each_load(list, chunk, [&](const LoadList::Entry& entry, std::uint64_t begin, std::uint64_t end) {
      if (entry.memory == nullptr) return;
      const std::span to(entry.memory + (begin - entry.begin), static_cast<std::size_t>(end - begin));
      // Wraps around where it lies before.
      const std::uintptr_t gap = memory.empty()
                                     ? kPageBytes
                                     : reinterpret_cast<std::uintptr_t>(to.data()) -
                                           reinterpret_cast<std::uintptr_t>(&memory.back().back()) - 1;
      if (gap < kPageBytes) {
        memory.back() = {memory.back().data(), to.data() + to.size()};
      } else {
        memory.push_back(to);
      }
    });
  }
  return memory;
}

std::vector<Chunk> cut_chunks(std::span<const TensorLoad> loads, const LoadList& list,
                              const ChunkShape& shape, unsigned files_at_once) {
  std::vector<std::vector<Chunk>> files;
  for (std::size_t first = 0; first < list.order.size();) {
    std::size_t last = first;
    while (last < list.order.size() && list.order[last].file == list.order[first].file) ++last;
    Cutter(loads, list, shape, files.emplace_back()).cut(first, last);
    first = last;
  }
  std::vector<Chunk> chunks;
  const std::size_t lanes = std::max(1U, files_at_once);
  struct Lane {
    std::size_t file;
    std::size_t next;
  };
  std::vector<Lane> open;
  std::size_t next_file = 0;
  while (next_file < files.size() || !open.empty()) {
    while (open.size() < lanes && next_file < files.size()) open.push_back({next_file++, 0});
    for (Lane& lane : open) chunks.push_back(files[lane.file][lane.next++]);
    std::erase_if(open, [&](const Lane& lane) { return lane.next == files[lane.file].size(); });
  }
  return chunks;
}

}  // namespace metrale::weights
