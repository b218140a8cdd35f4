// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <chrono>
#include <deque>
#include <fstream>
#include <optional>
#include <sys/resource.h>

#include <fmt/format.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/io/file.h>
#include <metrale/io/make_queue.h>
#include <metrale/weights/file_layout.h>

namespace metrale::app::load_bench {
namespace {

constexpr std::uint64_t kTensorAlignment = 256;
constexpr std::size_t kPageBytes = 4096;

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A line of /proc/self/status in bytes; 0 where it is not there.
std::uint64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// From here on the peak counts anew. What the process holds now.
std::uint64_t reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return status_bytes("VmRSS");
}

// Times `work`, which gives the bytes.
template <class Work>
Sample timed(const Work& work) {
  Sample sample;
  const std::uint64_t held = reset_peak();
  const double processor = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  sample.bytes = work();
  sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  sample.cpu_seconds = processor_seconds() - processor;
  const std::uint64_t peak = status_bytes("VmHWM");
  sample.peak_bytes = peak > held ? peak - held : 0;
  return sample;
}

// Reads files one after the other with a fixed number of reads in flight, into memory of the same kind as a
// load's staging (of pages of 4 KiB, some virtual disks give half as much).
class RawReader {
 public:
  RawReader(gpu::GpuBackend& gpu, const weights::LoadOptions& options, std::uint64_t staging_bytes)
      : chunk_bytes_(options.chunk_bytes),
        slots_(std::max<std::uint64_t>(1, staging_bytes / options.chunk_bytes)),
        memory_(gpu, slots_ * chunk_bytes_) {
    const auto depth = static_cast<std::uint32_t>(slots_);
    queue_ = io::make_io_queue(
        {.kind = options.engine, .limits = {.depth = depth, .max_files = 64, .max_buffers = 1}});
    buffer_ = queue_->register_buffer(memory_.span());
    for (std::size_t i = 0; i < slots_; ++i) free_.push_back(i);
  }

  std::uint64_t read(const std::string& path) {
    auto direct = io::File::try_open_direct(path, io::OpenMode::kRead);
    const io::File file = direct ? std::move(*direct) : io::File::open(path, io::OpenMode::kRead);
    const io::FileId id = queue_->register_file(file);
    const std::uint64_t size = file.size_bytes();
    const std::uint64_t unit = file.is_direct() ? file.direct_alignment()->offset_bytes : 1;
    std::uint64_t done = 0;
    for (std::uint64_t at = 0; done < size;) {
      while (at < size && !free_.empty()) {
        // The last read asks for whole units and gets what there is.
        const std::uint64_t bytes = std::min(chunk_bytes_, round_up(size - at, unit));
        const std::size_t slot = free_.back();
        free_.pop_back();
        const std::span<std::byte> to = memory_.span().subspan(slot * chunk_bytes_, bytes);
        (void)queue_->prepare(io::read_request(id, at, to, slot, buffer_));
        at += std::min(chunk_bytes_, size - at);
      }
      queue_->submit();
      done += collect();
    }
    queue_->unregister_file(id);
    return size;
  }

 private:
  std::uint64_t collect() {
    io::Completion completions[16];
    std::uint64_t bytes = 0;
    const std::size_t count = queue_->poll(completions);
    for (const io::Completion& completion : std::span(completions).first(count)) {
      if (completion.status == io::IoStatus::kFailed) throw queue_->error_of(completion);
      bytes += completion.bytes;
      free_.push_back(static_cast<std::size_t>(completion.user_data));
    }
    if (count == 0) throw InvalidArgument("a raw read ended before the file did");
    return bytes;
  }

  std::uint64_t chunk_bytes_;
  std::size_t slots_;
  gpu::PinnedBuffer memory_;
  std::unique_ptr<io::IoQueue> queue_;
  io::BufferId buffer_;
  std::vector<std::size_t> free_;
};

}  // namespace

Subject::Subject(gpu::GpuBackend& gpu, const std::string& path, const Layout& layout)
    : gpu_(gpu), directory_(weights::ModelDirectory::open(path)), layout_(layout) {
  for (const weights::TensorRef& tensor : directory_.tensors()) {
    loads_.push_back(weights::TensorLoad::whole(tensor));
    if (layout.is_as_in_files) continue;
    offsets_.push_back(slab_bytes_);
    slab_bytes_ += round_up(tensor.info().size_bytes, kTensorAlignment);
  }
  if (layout.is_as_in_files) {
    weights::FileLayout files = weights::file_layout(loads_);
    offsets_ = std::move(files.offsets);
    slab_bytes_ = files.size_bytes + weights::kFileLayoutAlignment;
  }
  if (slab_bytes_ > gpu.free_memory_bytes()) {
    throw OutOfMemory("device", slab_bytes_, gpu.free_memory_bytes(), "the model's weights do not fit");
  }
  if (layout.allocates) return;
  slab_ = gpu::DeviceBuffer(gpu, slab_bytes_);
  if (slab_bytes_ != 0) gpu.memset_blocking(slab_.ptr(), 0, slab_bytes_);
}

std::vector<weights::TensorTarget> Subject::targets(DevicePtr base) const {
  std::vector<weights::TensorTarget> targets;
  targets.reserve(loads_.size());
  const DevicePtr first =
      layout_.is_as_in_files ? DevicePtr(round_up(base.address(), weights::kFileLayoutAlignment)) : base;
  for (const std::uint64_t offset : offsets_) {
    targets.push_back({.address = first.offset(offset), .convert = {}});
  }
  return targets;
}

std::uint64_t Subject::file_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& file : directory_.files()) bytes += file.size_bytes();
  return bytes;
}

std::uint64_t Subject::cached_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& file : directory_.files()) {
    bytes += io::File::open(file.path(), io::OpenMode::kRead).resident_bytes();
  }
  return bytes;
}

std::uint64_t Subject::make_cold() const {
  for (const auto& file : directory_.files()) {
    io::File opened = io::File::open(file.path(), io::OpenMode::kRead);
    opened.sync();
    opened.drop_cache({});
  }
  return cached_bytes();
}

std::uint64_t Subject::make_warm() const {
  AlignedBuffer buffer(std::size_t{4} << 20, kPageBytes);
  for (const auto& file : directory_.files()) {
    const io::File opened = io::File::open(file.path(), io::OpenMode::kRead);
    for (std::uint64_t at = 0; at < file.size_bytes(); at += buffer.size_bytes()) {
      (void)opened.read_up_to(buffer.span(), at);
    }
  }
  return cached_bytes();
}

std::uint64_t Subject::staging_bytes(const weights::LoadOptions& options) const {
  return options.staging_bytes != 0 ? options.staging_bytes
                                    : weights::DeviceSink(gpu_, {}).wanted_staging_bytes();
}

Sample Subject::load(const weights::LoadOptions& options) {
  const std::uint64_t before = cached_bytes();
  std::string detail;
  gpu::DeviceBuffer own;  // given back after the time
  Sample sample = timed([&] {
    if (layout_.allocates) own = gpu::DeviceBuffer(gpu_, slab_bytes_);
    weights::DeviceSink sink(gpu_, targets(layout_.allocates ? own.ptr() : slab_.ptr()));
    const weights::LoadReport report = weights::load_tensors(directory_, loads_, sink, options);
    if (!report.files.empty()) {
      detail = fmt::format("{} reads by {}", to_string(report.files.front().used),
                           report.engine.empty() ? "mmap" : report.engine);
    }
    return report.loaded_bytes;
  });
  if (layout_.allocates && gpu_.capabilities().host_memory_is_device_memory) {
    sample.peak_bytes -= std::min(sample.peak_bytes, slab_bytes_);
  }
  sample.detail = std::move(detail);
  sample.cached_before = before;
  sample.cached_after = cached_bytes();
  return sample;
}

Sample Subject::read_raw(const weights::LoadOptions& options) const {
  const std::uint64_t before = cached_bytes();
  Sample sample = timed([&] {
    RawReader reader(gpu_, options, staging_bytes(options));
    std::uint64_t bytes = 0;
    for (const auto& file : directory_.files()) bytes += reader.read(file.path());
    return bytes;
  });
  sample.detail = "O_DIRECT, discarded";
  sample.cached_before = before;
  sample.cached_after = cached_bytes();
  return sample;
}

}  // namespace metrale::app::load_bench
