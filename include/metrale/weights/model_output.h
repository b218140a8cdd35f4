// SPDX-License-Identifier: Apache-2.0
// Writing a model directory: how tensors are spread over files, the index of these, and a directory in which
// they grow so that nobody finds half a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <metrale/weights/safetensors_writer.h>

namespace metrale::weights {

struct Shard {
  std::string file;
  std::vector<TensorSpec> tensors;
};

// The bytes of its data. Throws InvalidArgument where they are no whole number or overflow.
[[nodiscard]] std::uint64_t size_bytes(const TensorSpec& tensor);

// In the given order, each file taking what fits into `max_bytes` of data; a larger tensor has its own file.
// One file is model.safetensors, several are model-00001-of-0000N.safetensors.
[[nodiscard]] std::vector<Shard> cut_into_shards(std::span<const TensorSpec> tensors,
                                                 std::uint64_t max_bytes);

// The text of model.safetensors.index.json, byte for byte as the reference's writer has it
// (json.dumps(…, indent=2, sort_keys=True) and a new line).
[[nodiscard]] std::string shard_index_json(std::span<const Shard> shards);

enum class ExistingFiles : std::uint8_t {
  kRefuse,  // the directory must be new or empty
  kReplace  // a model that is there makes room for the new one
};

// The folder inside `directory` that a model grows in: nothing of it stays unless publish() was reached.
class ModelStaging {
 public:
  // Makes the directory where it is absent, not those above it. Throws IoError, InvalidArgument for a
  // directory with something in it.
  explicit ModelStaging(const std::string& directory, ExistingFiles existing = ExistingFiles::kRefuse);
  ~ModelStaging();
  ModelStaging(const ModelStaging&) = delete;
  ModelStaging& operator=(const ModelStaging&) = delete;

  // Where to write the file; publish() moves the files in the order of these calls. Throws InvalidArgument
  // for a name that was asked for before.
  [[nodiscard]] std::string file(const std::string& name);
  // Throws IoError before anything is written where the disk cannot hold it.
  void require_room(std::uint64_t bytes) const;
  // Moves every file up. With kReplace, first sets aside what find_shards() or a manifest would take for
  // weights of the new model, and what is replaced: the index before the rest, so that no mixture of both can
  // be loaded at any moment. Other files stay. Throws IoError, for a folder in the place of a file before
  // anything is moved; the old model is put back then.
  void publish();

 private:
  void remove_all() noexcept;
  [[nodiscard]] std::vector<std::string> old_files() const;
  void set_old_model_aside();
  [[nodiscard]] bool put_old_model_back() noexcept;

  std::filesystem::path target_;
  std::filesystem::path path_;
  ExistingFiles existing_;
  bool made_target_ = false;
  bool published_ = false;
  std::vector<std::string> names_;
  std::size_t moved_ = 0;
  std::vector<std::string> set_aside_;
};

}  // namespace metrale::weights
