// SPDX-License-Identifier: Apache-2.0
#include "weights/load_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>

namespace metrale::weights {
namespace {

// Staging memory is aligned so; direct I/O that asks for more is left to the page cache, and so is one by
// units that are not small beside a chunk.
constexpr std::uint64_t kAlignment = 4096;

bool suits(const io::DirectAlignment& alignment, std::uint64_t chunk_bytes) {
  return alignment.memory_bytes <= kAlignment && alignment.offset_bytes <= chunk_bytes / 2;
}

LoadPathChoice choose(const SafetensorsFile& file, const LoadOptions& options, io::FileCalls& calls) {
  if (options.path != LoadPath::kAuto) return {options.path, "it was asked for", false};
  return choose_load_path(file.path(), file.size_bytes(), calls);
}

}  // namespace

LoadShards::LoadShards(const ModelDirectory& directory, const LoadList& list, const LoadOptions& options,
                       std::uint64_t direct_chunk_bytes)
    : directory_(directory),
      calls_(options.calls == nullptr ? io::system_file_calls() : *options.calls),
      position_(directory.files().size()) {
  for (const LoadList::Entry& entry : list.order) {
    if (!shards_.empty() && shards_.back().file == entry.file) {
      shards_.back().load.loaded_bytes += entry.end - entry.begin;
      continue;
    }
    const SafetensorsFile& file = directory.files()[entry.file];
    position_[entry.file] = shards_.size();
    LoadShard& shard = shards_.emplace_back();
    shard.file = entry.file;
    shard.size_bytes = file.size_bytes();
    LoadPathChoice choice = choose(file, options, calls_);
    if (choice.path == LoadPath::kDirect) {
      const auto direct = io::File::try_open_direct(file.path(), io::OpenMode::kRead, calls_);
      const auto alignment = direct ? direct->direct_alignment() : std::nullopt;
      if (!alignment || !suits(*alignment, direct_chunk_bytes)) {
        choice = {
            LoadPath::kBuffered,
            alignment ? "its direct I/O is by units that are too large" : "its file system has no direct I/O",
            false};
      } else {
        shard.alignment = alignment->offset_bytes;
        shard.memory_alignment = alignment->memory_bytes;
      }
    }
    shard.drops_cache = options.path == LoadPath::kAuto && !choice.in_memory;
    shard.load = {.path = file.path(),
                  .used = choice.path,
                  .reason = std::move(choice.reason),
                  .loaded_bytes = entry.end - entry.begin};
  }
  for (const LoadShard& shard : shards_) {
    log().info("'{}': {} reads, because {}", shard.load.path, to_string(shard.load.used), shard.load.reason);
  }
}

bool LoadShards::needs_queue() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const LoadShard& s) { return !s.is_mapped(); });
}

bool LoadShards::reads_directly() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const LoadShard& s) { return s.is_direct(); });
}

LoadPath LoadShards::main_path() const {
  std::uint64_t direct = 0;
  std::uint64_t all = 0;
  for (const LoadShard& shard : shards_) {
    all += shard.load.loaded_bytes;
    if (shard.is_direct()) direct += shard.load.loaded_bytes;
  }
  return direct > all / 2 ? LoadPath::kDirect : LoadPath::kBuffered;
}

std::uint64_t LoadShards::alignment() const {
  std::uint64_t most = kAlignment;
  for (const LoadShard& shard : shards_) most = std::max(most, shard.alignment);
  return most;
}

void LoadShards::settle_places(LoadList& list) const {
  for (LoadList::Entry& entry : list.order) {
    const LoadShard& shard = shards_[position_[entry.file]];
    const std::uint64_t line = reinterpret_cast<std::uintptr_t>(entry.place) - entry.begin;
    const std::uint64_t unit = std::min(shard.alignment, shard.memory_alignment);
    if (shard.is_mapped() || (shard.is_direct() && line % unit != 0)) entry.place = nullptr;
  }
}

void LoadShards::count_chunks(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) ++of(chunk).chunks_left;
}

void LoadShards::open(LoadShard& shard, io::IoQueue* queue) {
  if (shard.buffered) return;
  const SafetensorsFile& file = directory_.files()[shard.file];
  shard.buffered = io::File::open(file.path(), io::OpenMode::kRead, calls_);
  shard.buffered->check_unchanged(file.identity());
  if (shard.is_mapped()) {
    const UniqueFd fd = open_regular_file(file.path());
    shard.map = MappedFile(fd, file.path());
    if (identify(fd, file.path()) != file.identity() || shard.map.bytes().size() != shard.size_bytes) {
      throw IoError("cannot trust", file.path(), 0, 0, "another file is in its place, or it was cut");
    }
    return;
  }
  if (shard.is_direct()) {
    shard.direct = io::File::try_open_direct(file.path(), io::OpenMode::kRead, calls_);
    if (shard.direct) {
      shard.direct->check_unchanged(file.identity());
      shard.direct_id = queue->register_file(*shard.direct);
    } else {
      fall_back(shard, 0);
    }
  }
  shard.buffered_id = queue->register_file(*shard.buffered);
}

void LoadShards::fall_back(LoadShard& shard, int error_number) {
  if (!shard.is_direct()) return;
  if (!shard.buffered) throw InvalidArgument("a file that is not open cannot be read in another way");
  // What others have in the page cache stays there.
  shard.drops_cache = shard.buffered->resident_bytes() <= shard.size_bytes / 2;
  shard.load.used = LoadPath::kBuffered;
  shard.load.fell_back = true;
  shard.load.reason = error_number == 0
                          ? "direct I/O was refused at open"
                          : fmt::format("a direct read was refused: {}", ::strerror(error_number));
  log().warn("'{}': {} reads from here on, because {}", shard.load.path, to_string(shard.load.used),
             shard.load.reason);
}

void LoadShards::close(LoadShard& shard, io::IoQueue* queue) {
  if (!shard.buffered) return;
  // What nobody had in the page cache does not stay there because of a load.
  if (shard.load.used == LoadPath::kBuffered && shard.drops_cache) shard.buffered->drop_cache({});
  if (shard.direct) queue->unregister_file(shard.direct_id);
  if (!shard.is_mapped()) queue->unregister_file(shard.buffered_id);
  shard.direct.reset();
  shard.buffered.reset();
}

std::vector<FileLoad> LoadShards::reports() const {
  std::vector<FileLoad> files;
  for (const LoadShard& shard : shards_) files.push_back(shard.load);
  return files;
}

}  // namespace metrale::weights
