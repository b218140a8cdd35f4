// SPDX-License-Identifier: Apache-2.0
// load_tensors(): the bytes of tensors out of safetensors files, as fast as the disk gives them. Shards are
// read in large aligned chunks that know nothing of tensors, many at a time, into a bounded ring of staging
// memory; what belongs to a tensor goes from there to a PieceSink, the device's or the caller's own.
// docs/weights.md describes the stream and the paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <metrale/io/make_queue.h>
#include <metrale/weights/load_path.h>
#include <metrale/weights/model_directory.h>

namespace metrale::weights {

// Bytes [begin_bytes, begin_bytes + size_bytes) of a tensor: whole elements (of sub-byte types: whole bytes).
struct TensorLoad {
  TensorRef tensor;
  std::uint64_t begin_bytes = 0;
  std::uint64_t size_bytes = 0;

  [[nodiscard]] static TensorLoad whole(const TensorRef& tensor) {
    return {tensor, 0, tensor.info().size_bytes};
  }
};

// A run of whole elements of one load.
struct Piece {
  std::size_t load = 0;            // position in the list of loads
  std::uint64_t offset_bytes = 0;  // within the load
  std::span<const std::byte> bytes;
};

struct RingShape {
  std::uint64_t staging_bytes = 0;
  std::uint64_t chunk_bytes = 0;  // of one read
  // Reads are handed over one by one, so that the system does not merge them into larger ones.
  bool reads_apart = false;
  // At most half of the chunks are being read, so that memory is left for the next reads while the sink
  // copies: virtual disks give all that they were asked for at once, and would then have nothing to do.
  bool reads_half = false;

  // What a chunk takes of it at most, with its edges.
  [[nodiscard]] std::uint64_t slot_bytes(std::uint64_t alignment_bytes = 4096) const;
  // Chunks in flight.
  [[nodiscard]] std::uint64_t slots(std::uint64_t alignment_bytes = 4096) const {
    return staging_bytes / slot_bytes(alignment_bytes);
  }
  bool operator==(const RingShape&) const = default;
};
// A small ring stays in the processor's caches.
inline constexpr RingShape kHostRing{
    .staging_bytes = std::uint64_t{16} << 20, .chunk_bytes = std::uint64_t{1} << 20, .reads_half = true};
// On the way to a device: what comes out of the page cache is as fast as the device's copies, which a large
// ring keeps under way; disks of virtual machines give less to reads as large, and to as much in
// flight.
inline constexpr RingShape kDeviceRing{.staging_bytes = std::uint64_t{44} << 20,
                                       .chunk_bytes = std::uint64_t{3} << 19};
inline constexpr RingShape kDirectDeviceRing{
    .staging_bytes = std::uint64_t{8} << 20, .chunk_bytes = std::uint64_t{256} << 10, .reads_apart = true};
inline constexpr std::uint64_t kMaxStagingBytes = std::uint64_t{256} << 20;

// Takes pieces. All calls come from the thread that loads.
class PieceSink {
 public:
  PieceSink() = default;
  virtual ~PieceSink() = default;
  PieceSink(const PieceSink&) = delete;
  PieceSink& operator=(const PieceSink&) = delete;

  // The ring where LoadOptions says nothing else; `used` is kDirect where most bytes of the load are read
  // past the page cache, else kBuffered. May be asked more than once, before the load begins.
  [[nodiscard]] RingShape wanted_ring(LoadPath used) const { return do_wanted_ring(used); }
  // Page-locked memory for the ring where the sink has a use for it, aligned to 4096; the loader's own
  // otherwise (an empty span). Called once; lives until finish() or the sink's end.
  [[nodiscard]] std::span<std::byte> staging(std::size_t bytes) { return do_staging(bytes); }
  // Where in host memory the `bytes` of a load may be read to, so that nobody copies them; null: nowhere.
  // When its pieces are taken they lie there already, unless they could not be read there: bytes.data()
  // tells. Pages that are not there yet are made ahead, by a thread of the load.
  [[nodiscard]] std::byte* place(std::size_t load, std::uint64_t bytes) const {
    return do_place(load, bytes);
  }
  // Pieces must come in the order of files and offsets; else in the order in which chunks arrive.
  [[nodiscard]] bool wants_order() const { return do_wants_order(); }
  // The bytes stay until the chunk is free. A load of no bytes comes once, empty.
  void take(const Piece& piece) { do_take(piece); }
  // Everything taken since the last call came from chunk `chunk`.
  void end_chunk(std::size_t chunk) { do_end_chunk(chunk); }
  // Whether the chunk's bytes are no longer needed; waits for that where `wait`. Asked again and again while
  // the load waits for reads: cheap, without `wait`.
  [[nodiscard]] bool is_free(std::size_t chunk, bool wait) { return do_is_free(chunk, wait); }
  // Blocking: everything that was taken is where it belongs.
  void finish() { do_finish(); }

 private:
  [[nodiscard]] virtual RingShape do_wanted_ring(LoadPath) const { return kHostRing; }
  [[nodiscard]] virtual std::span<std::byte> do_staging(std::size_t) { return {}; }
  [[nodiscard]] virtual std::byte* do_place(std::size_t, std::uint64_t) const { return nullptr; }
  [[nodiscard]] virtual bool do_wants_order() const { return true; }
  virtual void do_take(const Piece& piece) = 0;
  virtual void do_end_chunk(std::size_t) {}
  [[nodiscard]] virtual bool do_is_free(std::size_t, bool) { return true; }
  virtual void do_finish() {}
};

// Calls a function with every piece, in the order of files and offsets.
class CallbackSink final : public PieceSink {
 public:
  explicit CallbackSink(std::function<void(const Piece&)> take) : take_(std::move(take)) {}

 private:
  void do_take(const Piece& piece) override { take_(piece); }
  std::function<void(const Piece&)> take_;
};

struct LoadOptions {
  LoadPath path = LoadPath::kAuto;
  // In all, the sink's included. At least four chunks with their edges (InvalidArgument); chunks whose size
  // is not given shrink for it, to 8 KiB at least. 0, here and below: as the sink wants.
  std::uint64_t staging_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  unsigned shards_at_once = 2;  // a sink that wants order gets one
  // Of reads without io_uring. 0: one for each processor, two fewer where there are more than four, 2 to 16;
  // of direct reads, which wait more than they work, at least 8.
  unsigned threads = 0;
  io::IoEngineKind engine = io::IoEngineKind::kAuto;
  // Called between chunks with the bytes delivered and in all; false ends the load with Cancelled.
  std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress;

  // For tests: what stands between the loader and the system.
  io::FileCalls* calls = nullptr;
  std::function<std::unique_ptr<io::IoEngine>(const io::IoOptions&)> make_engine;
};

// The ring of a load that reads most bytes by this path: as the options say, else as the sink wants; four
// chunks where that is more than it wants. Throws InvalidArgument for options that make no sense.
[[nodiscard]] RingShape ring_of(const LoadOptions& options, const PieceSink& sink, LoadPath used,
                                std::uint64_t alignment_bytes = 4096);

struct FileLoad {
  std::string path;
  LoadPath used = LoadPath::kAuto;
  std::string reason;
  std::uint64_t loaded_bytes = 0;  // of tensors
  std::uint64_t read_bytes = 0;    // from the file, edges included
  bool fell_back = false;          // direct I/O was refused after the file was opened
};

struct LoadReport {
  std::vector<FileLoad> files;  // those that something was loaded from
  std::string engine;           // "io_uring", "posix"; empty where every file was mapped
  std::uint64_t loaded_bytes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t chunks = 0;
  std::uint64_t chunk_bytes = 0;    // of one read, about; 0 where every file was mapped
  std::uint64_t staging_bytes = 0;  // what was allocated of the ring
  double seconds = 0;
};

// Blocking. `loads` may come in any order and must not overlap within a file. Each file is checked to be the
// one that `directory` opened, before and after. Throws IoError (file, offset, cause), Cancelled,
// OutOfMemory, InvalidArgument, and whatever the sink throws; nothing is in flight then, and what was
// delivered is of no use.
LoadReport load_tensors(const ModelDirectory& directory, std::span<const TensorLoad> loads, PieceSink& sink,
                        const LoadOptions& options = {});

}  // namespace metrale::weights
