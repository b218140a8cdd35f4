// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>
#include <weights/file_hasher.h>

#include <metrale/base/error.h>
#include <metrale/base/hash.h>

namespace metrale::weights {
namespace {

// Tensors that follow each other: many small ones that are read together, or a large one.
struct Run {
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::vector<Run> cut_into_runs(const std::vector<TensorInfo>& tensors) {
  std::vector<Run> runs;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool fits = !runs.empty() && tensors[i].size_bytes <=
                                           kHashPieceBytes - std::min<std::uint64_t>(bytes, kHashPieceBytes);
    if (!fits) {
      runs.push_back({i, i});
      bytes = 0;
    }
    runs.back().end = i + 1;
    bytes += tensors[i].size_bytes;
  }
  return runs;
}

class FileHasher {
 public:
  FileHasher(const SafetensorsFile& file, const std::function<void(std::uint64_t)>& on_read,
             ManifestFile& out)
      : file_(&file), on_read_(&on_read), out_(&out) {}

  void run(ThreadPool& pool) {
    const std::vector<TensorInfo>& tensors = file_->header().tensors();
    const std::vector<Run> runs = cut_into_runs(tensors);
    pool.parallel_for(runs.size(), 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) hash_run(tensors, runs[i]);
    });
  }

  // In the order of the data.
  [[nodiscard]] std::vector<WeightProblem> take_problems() {
    std::vector<WeightProblem> problems;
    for (auto& [tensor, problem] : problems_) problems.push_back(std::move(problem));
    return problems;
  }

 private:
  void hash_run(const std::vector<TensorInfo>& tensors, const Run& run) {
    if (run.end - run.begin == 1) {
      hash_large(tensors[run.begin], run.begin);
      return;
    }
    const std::uint64_t start = tensors[run.begin].offset_bytes;
    const TensorInfo& last = tensors[run.end - 1];
    std::vector<std::byte>& piece = buffer(last.offset_bytes + last.size_bytes - start);
    try {
      read(start, piece);
    } catch (const IoError&) {
      // One by one, so that only those are named that cannot be read.
      for (std::size_t i = run.begin; i < run.end; ++i) hash_large(tensors[i], i);
      return;
    }
    for (std::size_t i = run.begin; i < run.end; ++i) {
      out_->tensors[i].hash =
          hash64(std::span(piece).subspan(tensors[i].offset_bytes - start, tensors[i].size_bytes));
    }
    count(piece.size());
  }

  void hash_large(const TensorInfo& tensor, std::size_t position) {
    Hasher64 hasher;
    try {
      for (std::uint64_t done = 0; done < tensor.size_bytes;) {
        std::vector<std::byte>& piece =
            buffer(std::min<std::uint64_t>(kHashPieceBytes, tensor.size_bytes - done));
        read(tensor.offset_bytes + done, piece);
        hasher.update(piece);
        done += piece.size();
        count(piece.size());
      }
      out_->tensors[position].hash = hasher.digest();
    } catch (const IoError& error) {
      const std::lock_guard lock(mutex_);
      problems_.emplace(position, WeightProblem{WeightProblem::Kind::kIo, file_->path(), tensor.name,
                                                tensor.offset_bytes, error.what()});
    }
  }

  // The one place that reads.
  void read(std::uint64_t offset_bytes, std::span<std::byte> out) const {
    file_->read_bytes(offset_bytes, out);
  }

  static std::vector<std::byte>& buffer(std::uint64_t size_bytes) {
    static thread_local std::vector<std::byte> bytes;
    bytes.resize(size_bytes);
    return bytes;
  }

  void count(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    (*on_read_)(bytes);
  }

  const SafetensorsFile* file_;
  const std::function<void(std::uint64_t)>* on_read_;
  ManifestFile* out_;
  std::mutex mutex_;
  std::map<std::size_t, WeightProblem> problems_;
};

std::uint64_t hash_header(const SafetensorsFile& file, std::uint64_t header_bytes) {
  Hasher64 hasher;
  std::vector<std::byte> piece;
  for (std::uint64_t done = 0; done < header_bytes; done += piece.size()) {
    piece.resize(std::min<std::uint64_t>(kHashPieceBytes, header_bytes - done));
    file.read_bytes(done, piece);
    hasher.update(piece);
  }
  return hasher.digest();
}

}  // namespace

ManifestFile hash_file(const SafetensorsFile& file, const std::string& name, bool read_data, ThreadPool& pool,
                       const std::function<void(std::uint64_t)>& on_read,
                       std::vector<WeightProblem>& problems) {
  ManifestFile result;
  result.name = name;
  result.size_bytes = file.size_bytes();
  result.header_bytes = file.size_bytes() - file.header().data_bytes();
  result.header_hash = hash_header(file, result.header_bytes);
  for (const TensorInfo& info : file.header().tensors()) {
    result.tensors.push_back({info.name, info.dtype, info.shape, info.offset_bytes, info.size_bytes, 0});
  }
  if (read_data) {
    FileHasher hasher(file, on_read, result);
    hasher.run(pool);
    for (WeightProblem& problem : hasher.take_problems()) problems.push_back(std::move(problem));
  }
  file.check_unchanged();
  return result;
}

}  // namespace metrale::weights
