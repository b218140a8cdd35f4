// SPDX-License-Identifier: Apache-2.0
// One timed reading of a model's files, and what the process and the page cache have to show for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <metrale/gpu/backend.h>
#include <metrale/gpu/buffer.h>
#include <metrale/weights/device_sink.h>
#include <metrale/weights/loader.h>
#include <metrale/weights/model_directory.h>

namespace metrale::app::load_bench {

struct Sample {
  double seconds = 0;
  double cpu_seconds = 0;           // of all threads, user and system
  std::uint64_t bytes = 0;          // of tensors; raw: of files
  std::uint64_t peak_bytes = 0;     // of the process, above what it held before and the weights
  std::uint64_t cached_before = 0;  // bytes of the files in the page cache
  std::uint64_t cached_after = 0;
  std::uint64_t staging_bytes = 0;  // memory that bytes pass through
  std::uint64_t chunk_bytes = 0;    // of one read
  std::string detail;               // what the load says of itself
};

// What is measured: the tensors of a model, into memory of the device that is there already. Or all that it
// takes to have them there: opening the files, reading their headers, and memory that is allocated meanwhile.
class Subject {
 public:
  struct Layout {
    bool allocates = false;  // all that it takes
    bool is_as_in_files =
        false;  // file_layout(); else every tensor at a multiple of 256, as the engine has them
  };
  // Throws OutOfMemory, and as ModelDirectory does.
  Subject(gpu::GpuBackend& gpu, const std::string& path, const Layout& layout);

  [[nodiscard]] std::uint64_t tensors() const { return model_.loads.size(); }
  [[nodiscard]] std::uint64_t tensor_bytes() const { return model_.directory.total_bytes(); }
  [[nodiscard]] std::uint64_t file_bytes() const;
  [[nodiscard]] std::size_t files() const { return model_.directory.files().size(); }

  // Empties the files' pages from the cache, or fills it with them; the bytes that are there then.
  std::uint64_t make_cold() const;
  std::uint64_t make_warm() const;
  [[nodiscard]] std::uint64_t cached_bytes() const;

  [[nodiscard]] Sample load(const weights::LoadOptions& options);
  // All bytes of the files past the page cache and nowhere, with the ring of a load that reads so.
  [[nodiscard]] Sample read_raw(const weights::LoadOptions& options) const;

 private:
  // A model and where its tensors go.
  struct Model {
    weights::ModelDirectory directory;
    std::vector<weights::TensorLoad> loads = {};
    std::vector<std::uint64_t> offsets = {};  // of the loads in the slab
    std::uint64_t slab_bytes = 0;
  };
  [[nodiscard]] Model open() const;
  weights::LoadReport load_into(const Model& model, DevicePtr slab, const weights::LoadOptions& options);

  gpu::GpuBackend& gpu_;
  std::string path_;
  Layout layout_;
  Model model_;
  gpu::DeviceBuffer slab_;  // where it does not allocate
};

}  // namespace metrale::app::load_bench
