// SPDX-License-Identifier: Apache-2.0
// Reading safetensors files: a strict header parser and an open file. What is accepted and what is refused,
// byte for byte: docs/formats/safetensors.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/fd.h>
#include <metrale/weights/dtype.h>
#include <metrale/weights/name_index.h>

namespace metrale::weights {

// The longest JSON header that is read; the same number as in the reference implementation (not MiB).
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// The little-endian length that stands before the JSON header.
inline constexpr std::uint64_t kLengthPrefixBytes = 8;

// The key that holds the metadata and therefore cannot name a tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct TensorInfo {
  std::string name;  // UTF-8 after unescaping; may be empty and may hold NUL
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;  // [] is one element; row-major
  std::uint64_t offset_bytes = 0;    // from the start of the file; no alignment is promised
  std::uint64_t size_bytes = 0;      // equals num_elems() * bits(dtype) / 8

  // Cannot overflow for a tensor that was parsed.
  [[nodiscard]] std::uint64_t num_elems() const;
};

// A name as it may be printed: control characters and backslashes escaped, long names cut.
[[nodiscard]] std::string printable_name(std::string_view name);

// A file that goes on after its last tensor is refused, as the reference does, unless it is told otherwise.
enum class TrailingBytes : std::uint8_t { kRefuse, kIgnore };

struct SafetensorsOptions {
  // The part of the file that is the container: an archive may hold it at any byte.
  std::uint64_t container_offset_bytes = 0;
  std::optional<std::uint64_t> container_size_bytes = std::nullopt;  // to the end of the file
  TrailingBytes trailing_bytes = TrailingBytes::kRefuse;
};

class SafetensorsHeader {
 public:
  // The length of the JSON header, from the first 8 bytes (or fewer, where the container is shorter).
  // `container_size_bytes` is the size of the file unless it is embedded in another one. Throws FormatError
  // before anything is allocated: too short, over kMaxHeaderBytes, beyond the container.
  [[nodiscard]] static std::uint64_t parse_length(std::span<const std::byte> prefix,
                                                  std::uint64_t container_size_bytes, const std::string& path,
                                                  const SafetensorsOptions& options = {});
  // `header_json` is what follows the length. Throws FormatError naming `path`, the tensor and the byte in
  // the file; OutOfMemory. Keeps no reference to its arguments.
  [[nodiscard]] static SafetensorsHeader parse(std::span<const std::byte> header_json,
                                               std::uint64_t container_size_bytes, const std::string& path,
                                               const SafetensorsOptions& options = {});

  // In the order of their data; tensors without data come before the one that begins at the same byte.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // nullptr where no tensor has this name. Valid as long as the header is neither moved to nor destroyed.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  // Of all tensors together.
  [[nodiscard]] std::uint64_t data_bytes() const { return data_bytes_; }

 private:
  friend class SafetensorsFile;
  SafetensorsHeader() = default;
  // `text` is followed by enough readable bytes for the JSON reader.
  [[nodiscard]] static SafetensorsHeader parse_padded(std::string_view text,
                                                      std::uint64_t container_size_bytes,
                                                      const std::string& path,
                                                      const SafetensorsOptions& options);

  std::vector<TensorInfo> tensors_;
  NameIndex by_name_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::uint64_t data_bytes_ = 0;
};

// An open file. Const calls may come from several threads. A file that is replaced by a rename goes on
// giving its old bytes; one that is overwritten in place is found by check_unchanged().
class SafetensorsFile {
 public:
  // Reads and checks the header, and the size of the file against it. Throws IoError, FormatError,
  // InvalidArgument where `path` is not a regular file.
  [[nodiscard]] static SafetensorsFile open(const std::string& path, const SafetensorsOptions& options = {});
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  // Of the whole file, when it was opened.
  [[nodiscard]] std::uint64_t size_bytes() const { return identity_.size_bytes; }
  [[nodiscard]] const FileIdentity& identity() const { return identity_; }

  // Blocking. Fills `out`, which has exactly the tensor's size, through pread. A tensor without data does no
  // I/O. Throws IoError naming file and byte, InvalidArgument for a wrong size or another file's tensor.
  void read(const TensorInfo& tensor, std::span<std::byte> out) const;
  // The bytes from `offset_bytes` on within the tensor.
  void read_range(const TensorInfo& tensor, std::uint64_t offset_bytes, std::span<std::byte> out) const;

  // Bytes of the file, the header's too, from `offset_bytes` on. Throws IoError, InvalidArgument for what is
  // not within the file.
  void read_bytes(std::uint64_t offset_bytes, std::span<std::byte> out) const;

  // Throws IoError if the file's size or time of change is not what it was when it was opened: what was
  // read meanwhile may be a mixture.
  void check_unchanged() const;

  // The tensor's bytes, valid until the file is destroyed, at any alignment. The whole file is mapped at the
  // first call; where the file system cannot map, the tensor is read into memory that the file keeps.
  // Truncating a mapped file kills its readers (SIGBUS): use read() for files that others may write.
  [[nodiscard]] std::span<const std::byte> map(const TensorInfo& tensor) const;

 private:
  struct Views;
  SafetensorsFile();
  void check_range(const TensorInfo& tensor, std::uint64_t offset_bytes, std::uint64_t wanted_bytes) const;

  std::string path_;
  UniqueFd fd_;
  FileIdentity identity_;
  SafetensorsHeader header_;
  std::unique_ptr<Views> views_;
};

}  // namespace metrale::weights
