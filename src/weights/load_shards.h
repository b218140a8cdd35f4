// SPDX-License-Identifier: Apache-2.0
// LoadShards: the files of a load, each open while chunks of it are read, by the path that was chosen for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <metrale/base/fd.h>
#include <metrale/io/file.h>
#include <metrale/io/io_queue.h>
#include <metrale/weights/loader.h>

#include "weights/load_chunks.h"

namespace metrale::weights {

struct LoadShard {
  std::uint32_t file = 0;
  FileLoad load;
  std::size_t chunks_left = 0;
  bool drops_cache = false;  // nobody had it in the page cache, and nobody asked for buffered reads
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment = 1;         // of direct reads: offsets and lengths
  std::uint64_t memory_alignment = 1;  // likewise, addresses
  std::optional<io::File> direct;
  std::optional<io::File> buffered;
  MappedFile map;
  io::FileId direct_id;
  io::FileId buffered_id;

  [[nodiscard]] bool is_mapped() const { return load.used == LoadPath::kMap; }
  [[nodiscard]] bool is_direct() const { return load.used == LoadPath::kDirect; }
};

class LoadShards {
 public:
  // Chooses the path of every file that `list` names; direct reads would be of so many bytes. Nothing stays
  // open.
  LoadShards(const ModelDirectory& directory, const LoadList& list, const LoadOptions& options,
             std::uint64_t direct_chunk_bytes);

  [[nodiscard]] bool needs_queue() const;
  [[nodiscard]] bool reads_directly() const;  // any of them
  // kDirect where most bytes are read so, else kBuffered.
  [[nodiscard]] LoadPath main_path() const;
  // Of any file's direct reads; at least 4096.
  [[nodiscard]] std::uint64_t alignment() const;
  // Takes places away that cannot be read into by the paths of their files: a mapping is not read, and direct
  // reads want addresses as aligned as offsets.
  void settle_places(LoadList& list) const;
  void count_chunks(std::span<const Chunk> chunks);
  [[nodiscard]] LoadShard& of(const Chunk& chunk) { return shards_[position_[chunk.file]]; }

  // Opens what the shard's path needs, once, and registers it; `queue` may be null for a mapped file. Throws
  // IoError where the file is not the one that the directory opened.
  void open(LoadShard& shard, io::IoQueue* queue);
  // Direct reads were refused: from here on through the page cache.
  void fall_back(LoadShard& shard, int error_number);
  // After the last chunk.
  void close(LoadShard& shard, io::IoQueue* queue);

  [[nodiscard]] std::vector<FileLoad> reports() const;

 private:
  const ModelDirectory& directory_;
  io::FileCalls& calls_;
  std::vector<LoadShard> shards_;
  std::vector<std::size_t> position_;  // of a file of the directory in shards_
};

}  // namespace metrale::weights
