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

// Reads all bytes of files with a fixed number of reads in flight, into memory of the same kind as a load's
// staging (of pages of 4 KiB, some virtual disks give half as much).
class RawReader {
 public:
  RawReader(gpu::GpuBackend& gpu, const weights::ModelDirectory& directory,
            const weights::LoadOptions& options, const weights::RingShape& ring)
      : chunk_bytes_(round_up(ring.chunk_bytes, kPageBytes)),
        slots_(std::min(ring.slots(), kMostSlots)),
        memory_(gpu, slots_ * chunk_bytes_) {
    for (const auto& file : directory.files()) {
      auto direct = io::File::try_open_direct(file.path(), io::OpenMode::kRead);
      files_.push_back(direct ? std::move(*direct) : io::File::open(file.path(), io::OpenMode::kRead));
    }
    queue_ = io::make_io_queue({.kind = options.engine,
                                .limits = {.depth = static_cast<std::uint32_t>(slots_),
                                           .max_files = static_cast<std::uint32_t>(files_.size()),
                                           .max_buffers = 1}});
    buffer_ = queue_->register_buffer(memory_.span());
    for (const io::File& file : files_) ids_.push_back(queue_->register_file(file));
    for (std::size_t i = 0; i < slots_; ++i) free_.push_back(i);
  }

  [[nodiscard]] std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] std::uint64_t staging_bytes() const { return slots_ * chunk_bytes_; }
  // The bytes of all files; once.
  std::uint64_t run() {
    std::uint64_t done = 0;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const std::uint64_t size = files_[i].size_bytes();
      const auto alignment = files_[i].direct_alignment();
      const std::uint64_t unit = alignment ? alignment->offset_bytes : 1;
      for (std::uint64_t at = 0; at < size; at += chunk_bytes_) {
        while (free_.empty()) done += collect();
        // The last read asks for whole units and gets what there is.
        read(ids_[i], at, std::min(chunk_bytes_, round_up(size - at, unit)));
      }
    }
    while (free_.size() < slots_) done += collect();
    return done;
  }

 private:
  static constexpr std::uint64_t kMostSlots = 1024;

  void read(io::FileId file, std::uint64_t at, std::uint64_t bytes) {
    const std::size_t slot = free_.back();
    free_.pop_back();
    const std::span<std::byte> to = memory_.span().subspan(slot * chunk_bytes_, bytes);
    (void)queue_->prepare(io::read_request(file, at, to, slot, buffer_));
    queue_->submit();
  }
  std::uint64_t collect() {
    io::Completion completions[16];
    std::uint64_t bytes = 0;
    const std::size_t count = queue_->poll(completions);
    for (const io::Completion& completion : std::span(completions).first(count)) {
      if (completion.status == io::IoStatus::kFailed) throw queue_->error_of(completion);
      bytes += completion.bytes;
      free_.push_back(static_cast<std::size_t>(completion.user_data));
    }
    return bytes;
  }

  std::uint64_t chunk_bytes_;
  std::size_t slots_;
  gpu::PinnedBuffer memory_;
  std::vector<io::File> files_;
  std::unique_ptr<io::IoQueue> queue_;  // before its files
  io::BufferId buffer_;
  std::vector<io::FileId> ids_;
  std::vector<std::size_t> free_;
};

}  // namespace

Subject::Subject(gpu::GpuBackend& gpu, const std::string& path, const Layout& layout)
    : gpu_(gpu), path_(path), layout_(layout), model_(open()) {
  if (model_.slab_bytes > gpu.free_memory_bytes()) {
    throw OutOfMemory("device", model_.slab_bytes, gpu.free_memory_bytes(), "the model's weights do not fit");
  }
  if (layout.allocates || model_.slab_bytes == 0) return;
  slab_ = gpu::DeviceBuffer(gpu, model_.slab_bytes);
  gpu.memset_blocking(slab_.ptr(), 0, model_.slab_bytes);
}

Subject::Model Subject::open() const {
  Model model{.directory = weights::ModelDirectory::open(path_)};
  for (const weights::TensorRef& tensor : model.directory.tensors()) {
    model.loads.push_back(weights::TensorLoad::whole(tensor));
    if (layout_.is_as_in_files) continue;
    model.offsets.push_back(model.slab_bytes);
    const std::uint64_t padded = checked_add(tensor.info().size_bytes, kTensorAlignment - 1);
    model.slab_bytes = checked_add(model.slab_bytes, padded / kTensorAlignment * kTensorAlignment);
  }
  if (layout_.is_as_in_files) {
    weights::FileLayout files = weights::file_layout(model.loads);
    model.offsets = std::move(files.offsets);
    model.slab_bytes = checked_add(files.size_bytes, weights::kFileLayoutAlignment);
  }
  return model;
}

weights::LoadReport Subject::load_into(const Model& model, DevicePtr slab,
                                       const weights::LoadOptions& options) {
  const DevicePtr first =
      layout_.is_as_in_files ? DevicePtr(round_up(slab.address(), weights::kFileLayoutAlignment)) : slab;
  std::vector<weights::TensorTarget> targets;
  targets.reserve(model.offsets.size());
  for (const std::uint64_t offset : model.offsets) {
    targets.push_back({.address = first.offset(offset), .convert = {}});
  }
  weights::DeviceSink sink(gpu_, std::move(targets));
  return weights::load_tensors(model.directory, model.loads, sink, options);
}

std::uint64_t Subject::file_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& file : model_.directory.files()) bytes = checked_add(bytes, file.size_bytes());
  return bytes;
}

std::uint64_t Subject::cached_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& file : model_.directory.files()) {
    bytes += io::File::open(file.path(), io::OpenMode::kRead).resident_bytes();
  }
  return bytes;
}

std::uint64_t Subject::make_cold() const {
  for (const auto& file : model_.directory.files()) {
    io::File opened = io::File::open(file.path(), io::OpenMode::kRead);
    opened.sync();
    opened.drop_cache({});
  }
  return cached_bytes();
}

std::uint64_t Subject::make_warm() const {
  AlignedBuffer buffer(std::size_t{4} << 20, kPageBytes);
  for (const auto& file : model_.directory.files()) {
    const io::File opened = io::File::open(file.path(), io::OpenMode::kRead);
    for (std::uint64_t at = 0; at < file.size_bytes(); at += buffer.size_bytes()) {
      (void)opened.read_up_to(buffer.span(), at);
    }
  }
  return cached_bytes();
}

Sample Subject::load(const weights::LoadOptions& options) {
  const std::uint64_t before = cached_bytes();
  weights::LoadReport report;
  std::optional<Model> model;  // given back after the time
  gpu::DeviceBuffer slab;
  Sample sample = timed([&] {
    if (layout_.allocates) {
      model = open();
      slab = gpu::DeviceBuffer(gpu_, model->slab_bytes);
    }
    report = load_into(model ? *model : model_, model ? slab.ptr() : slab_.ptr(), options);
    return report.loaded_bytes;
  });
  if (layout_.allocates && gpu_.capabilities().host_memory_is_device_memory) {
    sample.peak_bytes -= std::min(sample.peak_bytes, model_.slab_bytes);
  }
  if (!report.files.empty()) {
    sample.detail = fmt::format("{} reads by {}", to_string(report.files.front().used),
                                report.engine.empty() ? "mmap" : report.engine);
  }
  sample.cached_before = before;
  sample.cached_after = cached_bytes();
  sample.staging_bytes = report.staging_bytes;
  sample.chunk_bytes = report.chunk_bytes;
  return sample;
}

Sample Subject::read_raw(const weights::LoadOptions& options) const {
  const std::uint64_t before = cached_bytes();
  const weights::DeviceSink sink(gpu_, {});
  RawReader reader(gpu_, model_.directory, options,
                   weights::ring_of(options, sink, weights::LoadPath::kDirect));
  Sample sample = timed([&] { return reader.run(); });
  sample.detail = "O_DIRECT, discarded";
  sample.cached_before = before;
  sample.cached_after = cached_bytes();
  sample.staging_bytes = reader.staging_bytes();
  sample.chunk_bytes = reader.chunk_bytes();
  return sample;
}

}  // namespace metrale::app::load_bench
