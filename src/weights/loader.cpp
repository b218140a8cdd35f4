// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/weights/loader.h>

#include "weights/load_stream.h"

namespace metrale::weights {
namespace {

constexpr std::size_t kFewestChunks = 4;
constexpr std::uint64_t kMostChunkBytes = std::uint64_t{63} << 20;  // of which staging holds four
constexpr std::size_t kMostChunks = 1024;                           // in flight
constexpr std::uint64_t kPageBytes = 4096;
// Threads that read directly wait for the disk most of the time.
constexpr unsigned kDirectThreads = 8;
// How often a load that waits for reads looks whether the sink is done with a chunk, so that its memory is
// read into again: some disks complete many reads at a time, and would be left with few.
constexpr auto kReclaimPeriod = std::chrono::microseconds(50);

// Refusals of direct I/O that some file systems give at the first transfer, not at open.
bool is_refusal(int error_number) {
  return error_number == EINVAL || error_number == EOPNOTSUPP || error_number == ENOSYS;
}

// The thread that loads, and the one that copies, need processors of their own.
unsigned default_threads() {
  const unsigned processors = std::thread::hardware_concurrency();
  return std::clamp(processors > 4 ? processors - 2 : processors, 2U, 16U);
}

struct QueueUse {
  std::size_t slots = 0;
  std::size_t files_at_once = 0;
  bool reads_directly = false;
  bool reads_in_place = false;
};

std::unique_ptr<io::IoQueue> make_queue(const LoadOptions& options, const QueueUse& use) {
  io::IoOptions io{.kind = options.engine};
  // Who asks for a read copies what is in memory already, and makes those pages of new memory that nobody has
  // made yet: io_uring would do that on this one thread.
  const bool asker_works = !use.reads_directly || use.reads_in_place;
  if (io.kind == io::IoEngineKind::kAuto && asker_works) io.kind = io::IoEngineKind::kPosix;
  const auto depth = static_cast<std::uint32_t>(ChunkReads::kMostParts * use.slots);
  // Of every file two descriptors: of those whose chunks are in flight, and of those that are begun.
  const auto files = static_cast<std::uint32_t>(2 * (use.slots + use.files_at_once));
  io.limits = {.depth = depth, .max_files = files, .max_buffers = 1};
  io.threads = options.threads != 0 ? options.threads : default_threads();
  if (options.threads == 0 && use.reads_directly) io.threads = std::max(io.threads, kDirectThreads);
  auto engine = options.make_engine ? options.make_engine(io) : io::make_io_engine(io);
  return std::make_unique<io::IoQueue>(std::move(engine));
}

}  // namespace

std::uint64_t RingShape::slot_bytes(std::uint64_t alignment_bytes) const {
  return round_up(chunk_bytes + kMostElementBytes + 2 * alignment_bytes, kPageBytes);
}

RingShape ring_of(const LoadOptions& options, const PieceSink& sink, LoadPath used,
                  std::uint64_t alignment_bytes) {
  const RingShape wanted = sink.wanted_ring(used);
  RingShape ring{.staging_bytes = options.staging_bytes,
                 .chunk_bytes = options.chunk_bytes != 0 ? options.chunk_bytes : wanted.chunk_bytes,
                 .reads_apart = wanted.reads_apart,
                 .reads_half = wanted.reads_half};
  if (ring.chunk_bytes < 2 * kPageBytes || ring.chunk_bytes > kMostChunkBytes) {
    throw InvalidArgument(fmt::format("chunk_bytes is {}; 8 KiB to 63 MiB are possible", ring.chunk_bytes));
  }
  if (ring.staging_bytes > kMaxStagingBytes) {
    throw InvalidArgument(
        fmt::format("staging_bytes is {}; at most {} are used", ring.staging_bytes, kMaxStagingBytes));
  }
  if (ring.staging_bytes != 0 && options.chunk_bytes == 0) {
    // Staging that holds too few of the wanted chunks holds smaller ones.
    const std::uint64_t share = ring.staging_bytes / kFewestChunks / kPageBytes * kPageBytes;
    const std::uint64_t edges = round_up(kMostElementBytes + 2 * alignment_bytes, kPageBytes);
    if (share >= edges + 2 * kPageBytes) ring.chunk_bytes = std::min(ring.chunk_bytes, share - edges);
  }
  if (ring.staging_bytes == 0) {
    const std::uint64_t fewest = kFewestChunks * ring.slot_bytes(alignment_bytes);
    ring.staging_bytes = std::min(std::max(wanted.staging_bytes, fewest), kMaxStagingBytes);
  }
  if (ring.slots(alignment_bytes) < kFewestChunks) {
    throw InvalidArgument(fmt::format("staging of {} bytes holds {} chunks of {}; at least {} are needed",
                                      ring.staging_bytes, ring.slots(alignment_bytes),
                                      ring.slot_bytes(alignment_bytes), kFewestChunks));
  }
  return ring;
}

LoadStream::LoadStream(const ModelDirectory& directory, std::span<const TensorLoad> loads, PieceSink& sink,
                       const LoadOptions& options)
    : directory_(directory),
      loads_(loads),
      sink_(sink),
      options_(options),
      list_(order_loads(directory, loads, sink)),
      shards_(directory, list_, options_, ring_of(options_, sink, LoadPath::kDirect).chunk_bytes),
      ring_(ring_of(options_, sink, shards_.main_path(), shards_.alignment())),
      chunks_(
          (shards_.settle_places(list_), cut_chunks(loads, list_, {ring_.chunk_bytes, shards_.alignment()},
                                                    sink.wants_order() ? 1 : options_.shards_at_once))) {
  shards_.count_chunks(chunks_);
  settle_chunks();
  allocate();
}

void LoadStream::settle_chunks() {
  for (Chunk& chunk : chunks_) {
    const LoadShard& shard = shards_.of(chunk);
    if (!ChunkReads::fits_place(chunk, shard)) chunk.place = nullptr;
    reads_in_place_ |= chunk.place != nullptr;
    if (!shard.is_mapped()) stride_ = std::max(stride_, ChunkReads::staging_bytes(chunk, shard));
  }
}

void LoadStream::allocate() {
  // In flight are as many chunks as staging would hold, though those that are read in place take none of it.
  const std::uint64_t most = ring_.slots(shards_.alignment());
  slots_.resize(std::min<std::uint64_t>({most, chunks_.size(), kMostChunks}));
  completions_.resize(slots_.size() + 1);
  if (!shards_.needs_queue() || slots_.empty()) return;
  report_.staging_bytes = slots_.size() * stride_;
  std::span<std::byte> staging = sink_.staging(report_.staging_bytes);
  if (staging.empty()) {
    const bool is_large = report_.staging_bytes >= kHugePageBytes;
    own_staging_ = AlignedBuffer(report_.staging_bytes, is_large ? kHugePageBytes : kPageBytes);
    staging = own_staging_.span();
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].memory = staging.data() + i * stride_;
  const std::size_t files = std::min<std::size_t>(options_.shards_at_once, directory_.files().size());
  queue_ = make_queue(options_, {.slots = slots_.size(),
                                 .files_at_once = files,
                                 .reads_directly = shards_.reads_directly(),
                                 .reads_in_place = reads_in_place_});
  report_.engine = queue_->name();
  buffer_ = queue_->register_buffer(staging);
}

LoadStream::~LoadStream() {
  page_maker_.stop();
  if (queue_) queue_->drain();
  if (finished_) return;
  try {
    sink_.finish();
  } catch (const std::exception& error) {
    log().warn("a load that failed left its sink unfinished: {}", error.what());
  }
}

LoadReport LoadStream::run() {
  const auto start = std::chrono::steady_clock::now();
  page_maker_.start(memory_of(list_, chunks_));
  for (const std::size_t load : list_.empty) sink_.take({.load = load, .offset_bytes = 0, .bytes = {}});
  while (delivered_ < chunks_.size()) {
    (void)reclaim(false);
    while (may_begin()) {
      const auto slot = free_slot();
      if (!slot) break;
      begin(*slot, next_chunk_++);
    }
    if (queue_) queue_->submit();
    if (!deliver_arrived()) wait_for_something();
  }
  page_maker_.stop();
  sink_.finish();
  finished_ = true;
  directory_.check_unchanged();
  report_.files = shards_.reports();
  for (const FileLoad& file : report_.files) report_.read_bytes += file.read_bytes;
  report_.loaded_bytes = list_.total_bytes;
  report_.chunks = chunks_.size();
  report_.chunk_bytes = queue_ ? ring_.chunk_bytes : 0;
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report_;
}

bool LoadStream::may_begin() const {
  if (next_chunk_ == chunks_.size()) return false;
  // What is read in place leaves its slot as soon as it has arrived.
  const bool reads_half = ring_.reads_half && chunks_[next_chunk_].place == nullptr;
  return !reads_half || reading_ < (slots_.size() + 1) / 2;
}

std::optional<std::size_t> LoadStream::free_slot() const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == SlotState::kFree) return i;
  }
  return std::nullopt;
}

void LoadStream::begin(std::size_t slot, std::size_t chunk) {
  Slot& s = slots_[slot];
  s.chunk = chunk;
  LoadShard& shard = shards_.of(chunks_[chunk]);
  shards_.open(shard, queue_.get());
  if (shard.is_mapped()) {
    s.bytes = shard.map.bytes().data() + chunks_[chunk].begin;
    s.state = SlotState::kArrived;
    return;
  }
  s.state = SlotState::kReading;
  ++reading_;
  read(slot);
}

void LoadStream::read(std::size_t slot) {
  Slot& s = slots_[slot];
  s.again = false;
  LoadShard& shard = shards_.of(chunks_[s.chunk]);
  s.parts = ChunkReads(chunks_[s.chunk], shard, s.memory);
  for (const ReadPart& part : s.parts) {
    const io::FileId file = part.is_direct ? shard.direct_id : shard.buffered_id;
    const std::span to(part.to, part.end - part.begin);
    const bool is_staging = s.memory <= part.to && part.to < s.memory + stride_;
    const auto request =
        queue_->prepare(io::read_request(file, part.begin, to, slot, is_staging ? buffer_ : io::BufferId{}));
    if (!request) throw InvalidArgument("the queue has fewer places than the load has reads");
    ++s.reads;
    shard.load.read_bytes += to.size();
  }
  if (ring_.reads_apart) queue_->submit();
}

void LoadStream::take(const io::Completion& completion) {
  const auto slot = static_cast<std::size_t>(completion.user_data);
  Slot& s = slots_[slot];
  LoadShard& shard = shards_.of(chunks_[s.chunk]);
  --s.reads;
  if (completion.status != io::IoStatus::kComplete) {
    const bool refused = completion.status == io::IoStatus::kFailed && shard.direct &&
                         completion.file == shard.direct_id && is_refusal(completion.error_number);
    if (!refused) throw queue_->error_of(completion);
    shards_.fall_back(shard, completion.error_number);
    s.again = true;
  }
  if (s.reads != 0) return;
  if (s.again) return read(slot);
  s.parts.finish();
  s.bytes = s.parts.bytes();
  s.state = SlotState::kArrived;
  --reading_;
}

bool LoadStream::deliver_arrived() {
  bool any = false;
  if (!sink_.wants_order()) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].state != SlotState::kArrived) continue;
      deliver(i);
      any = true;
    }
    return any;
  }
  for (bool found = true; found;) {
    found = false;
    for (std::size_t i = 0; i < slots_.size() && !found; ++i) {
      if (slots_[i].state != SlotState::kArrived || slots_[i].chunk != next_turn_) continue;
      ++next_turn_;
      deliver(i);
      any = found = true;
    }
  }
  return any;
}

void LoadStream::deliver(std::size_t slot) {
  Slot& s = slots_[slot];
  const Chunk& chunk = chunks_[s.chunk];
  for_each_load(list_, chunk, [&](const LoadList::Entry& entry, std::uint64_t begin, std::uint64_t end) {
    sink_.take({.load = entry.load,
                .offset_bytes = begin - entry.begin,
                .bytes = {s.bytes + (begin - chunk.begin), static_cast<std::size_t>(end - begin)}});
    done_bytes_ += end - begin;
  });
  s.state = SlotState::kDelivered;
  sink_.end_chunk(slot);
  ++delivered_;
  LoadShard& shard = shards_.of(chunk);
  if (--shard.chunks_left == 0) shards_.close(shard, queue_.get());
  if (options_.progress && !options_.progress(done_bytes_, list_.total_bytes)) {
    throw Cancelled("the load was cancelled");
  }
}

bool LoadStream::waits_for_memory() const {
  return may_begin() &&
         std::ranges::any_of(slots_, [](const Slot& slot) { return slot.state == SlotState::kDelivered; });
}

bool LoadStream::reclaim(bool wait) {
  bool any = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state != SlotState::kDelivered || !sink_.is_free(i, wait && !any)) continue;
    slots_[i].state = SlotState::kFree;
    any = true;
  }
  return any;
}

void LoadStream::wait_for_something() {
  if (reading_ == 0) {
    // All that is left is with the sink.
    if (!reclaim(true)) throw InvalidArgument("a load has nothing to wait for");
    return;
  }
  const io::IoTime deadline =
      waits_for_memory() ? std::chrono::steady_clock::now() + kReclaimPeriod : io::kForever;
  const std::size_t count = queue_->poll(completions_, 1, deadline);
  for (std::size_t i = 0; i < count; ++i) take(completions_[i]);
}

LoadReport load_tensors(const ModelDirectory& directory, std::span<const TensorLoad> loads, PieceSink& sink,
                        const LoadOptions& options) {
  LoadReport report = LoadStream(directory, loads, sink, options).run();
  log().info("{} bytes of {} files in {:.3f} s: {:.2f} GB/s, {} chunks by {}", report.loaded_bytes,
             report.files.size(), report.seconds,
             static_cast<double>(report.loaded_bytes) / std::max(report.seconds, 1e-9) / 1e9, report.chunks,
             report.engine.empty() ? "mmap" : report.engine);
  return report;
}

}  // namespace metrale::weights
