// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>
#include <utility>

#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/weights/device_sink.h>

namespace metrale::weights {
namespace {

// Converted elements are copied in pieces of so much, a few of which are on their way at a time.
constexpr std::size_t kConvertedBytes = std::size_t{2} << 20;
constexpr std::size_t kConvertedPieces = 4;
constexpr std::size_t kMostHostStreams = 4;
constexpr std::size_t kConvertGrain = std::size_t{16} << 10;  // elements

// Each copies with one thread; those that read need processors too, or the disk waits for them.
std::size_t host_streams() {
  return std::clamp<std::size_t>(std::thread::hardware_concurrency() / 2, 1, kMostHostStreams);
}

}  // namespace

DeviceSink::DeviceSink(gpu::GpuBackend& gpu, std::vector<TensorTarget> targets)
    : gpu_(gpu), is_host_(gpu.capabilities().host_memory_is_device_memory), targets_(std::move(targets)) {
  const std::size_t streams = is_host_ ? host_streams() : 1;
  for (std::size_t i = 0; i < streams; ++i) streams_.push_back(gpu::make_stream(gpu));
}

DeviceSink::~DeviceSink() {
  for (const gpu::Stream& stream : streams_) {
    try {
      gpu_.synchronize(stream.ref());
    } catch (const Error& error) {
      log().warn("the stream of a load failed: {}", error.what());
    }
  }
}

RingShape DeviceSink::do_wanted_ring(LoadPath used) const {
  if (is_host_) return kHostRing;
  return used == LoadPath::kDirect ? kDirectDeviceRing : kDeviceRing;
}

std::span<std::byte> DeviceSink::do_staging(std::size_t bytes) {
  staging_ = gpu::PinnedBuffer(gpu_, bytes);
  return staging_.span();
}

std::byte* DeviceSink::do_place(std::size_t load, std::uint64_t bytes) const {
  const TensorTarget& target = targets_.at(load);
  return is_host_ && !target.convert ? gpu_.host_range(target.address, bytes).data() : nullptr;
}

void DeviceSink::do_take(const Piece& piece) {
  if (piece.bytes.empty()) return;
  const TensorTarget& target = targets_.at(piece.load);
  if (target.convert) return convert(target, piece);
  if (is_host_ && reinterpret_cast<std::uintptr_t>(piece.bytes.data()) ==
                      target.address.offset(piece.offset_bytes).address()) {
    return;  // it was read to its place
  }
  const DevicePtr to = target.address.offset(piece.offset_bytes);
  if (run_.extend(to, piece.bytes)) return;
  enqueue_run();
  run_ = CopyRun(to, piece.bytes, gpu_.allocation_of(to));
}

void DeviceSink::enqueue_run() {
  if (!run_.bytes().empty()) gpu_.copy_h2d_async_retained(run_.to(), run_.bytes(), stream());
  run_ = {};
}

DeviceSink::Converted& DeviceSink::next_converted() {
  if (converted_.size() < kConvertedPieces) {
    converted_.push_back({gpu::PinnedBuffer(gpu_, kConvertedBytes), gpu::make_event(gpu_), false});
    return converted_.back();
  }
  Converted& next = converted_[turn_++ % kConvertedPieces];
  if (next.is_used) gpu_.event_synchronize(next.event.ref());
  return next;
}

void DeviceSink::convert(const TensorTarget& target, const Piece& piece) {
  if (!pool_) pool_.emplace();
  const std::size_t in = target.in_element_bytes;
  const std::size_t out = target.out_element_bytes;
  const std::uint64_t first = piece.offset_bytes / in;
  const std::size_t count = piece.bytes.size() / in;
  for (std::size_t done = 0; done < count;) {
    const std::size_t now = std::min(count - done, kConvertedBytes / out);
    Converted& converted = next_converted();
    const std::span<const std::byte> from = piece.bytes.subspan(done * in, now * in);
    const std::span<std::byte> to = converted.memory.span().first(now * out);
    pool_->parallel_for(now, kConvertGrain, [&](std::size_t begin, std::size_t end) {
      target.convert(first + done + begin, from.subspan(begin * in, (end - begin) * in),
                     to.subspan(begin * out, (end - begin) * out));
    });
    gpu_.copy_h2d_async_retained(target.address.offset((first + done) * out), to, stream());
    gpu_.record_event(converted.event.ref(), stream());
    converted.is_used = true;
    done += now;
  }
}

void DeviceSink::do_end_chunk(std::size_t chunk) {
  enqueue_run();
  if (chunk_events_.size() <= chunk) chunk_events_.resize(chunk + 1);
  if (chunk_events_[chunk].is_empty()) chunk_events_[chunk] = gpu::make_event(gpu_);
  gpu_.record_event(chunk_events_[chunk].ref(), stream());
  current_ = (current_ + 1) % streams_.size();
}

bool DeviceSink::do_is_free(std::size_t chunk, bool wait) {
  const gpu::EventRef event = chunk_events_.at(chunk).ref();
  if (gpu_.event_query(event)) return true;
  if (!wait) return false;
  gpu_.event_synchronize(event);
  return true;
}

void DeviceSink::do_finish() {
  for (const gpu::Stream& each : streams_) gpu_.synchronize(each.ref());
}

}  // namespace metrale::weights
