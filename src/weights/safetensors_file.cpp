// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <weights/json.h>
#include <weights/names.h>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/weights/safetensors.h>

namespace metrale::weights {
namespace {

std::uint64_t container_size(const SafetensorsOptions& options, std::uint64_t file_size_bytes,
                             const std::string& path) {
  const std::uint64_t offset = options.container_offset_bytes;
  const std::uint64_t rest = file_size_bytes - std::min(offset, file_size_bytes);
  const std::uint64_t size = options.container_size_bytes.value_or(rest);
  if (offset > file_size_bytes || size > rest) {
    throw InvalidArgument(fmt::format("a container of {} bytes at byte {} is not within '{}', which has {}",
                                      size, offset, path, file_size_bytes));
  }
  return size;
}

}  // namespace

// What map() has handed out.
struct SafetensorsFile::Views {
  std::mutex mutex;
  bool mapping_refused = false;
  MappedFile mapping;
  std::unordered_map<std::uint64_t, std::vector<std::byte>> read_tensors;  // by offset in the file
};

SafetensorsFile::SafetensorsFile() : views_(std::make_unique<Views>()) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

SafetensorsFile SafetensorsFile::open(const std::string& path, const SafetensorsOptions& options) {
  SafetensorsFile file;
  file.path_ = path;
  file.fd_ = open_regular_file(path);
  file.identity_ = identify(file.fd_, path);

  const std::uint64_t container_bytes = container_size(options, file.identity_.size_bytes, path);
  std::array<std::byte, kLengthPrefixBytes> storage{};
  const std::span<std::byte> prefix =
      std::span(storage).first(static_cast<std::size_t>(std::min(container_bytes, kLengthPrefixBytes)));
  read_exactly_no_further(file.fd_, prefix, options.container_offset_bytes, path);
  const std::uint64_t length = SafetensorsHeader::parse_length(prefix, container_bytes, path, options);

  PaddedBuffer text(length);
  read_exactly_no_further(file.fd_, text.bytes(), options.container_offset_bytes + kLengthPrefixBytes, path);
  file.header_ = SafetensorsHeader::parse_padded(text.text(), container_bytes, path, options);
  return file;
}

void SafetensorsFile::check_range(const TensorInfo& tensor, std::uint64_t offset_bytes,
                                  std::uint64_t wanted_bytes) const {
  const auto tensor_end = try_add(tensor.offset_bytes, tensor.size_bytes);
  if (!tensor_end || *tensor_end > identity_.size_bytes) {
    throw InvalidArgument(fmt::format("tensor {} is not one of '{}'", quote_name(tensor.name), path_));
  }
  const auto range_end = try_add(offset_bytes, wanted_bytes);
  if (!range_end || *range_end > tensor.size_bytes) {
    throw InvalidArgument(fmt::format("{} bytes from byte {} asked of tensor {}, which has {}", wanted_bytes,
                                      offset_bytes, quote_name(tensor.name), tensor.size_bytes));
  }
}

void SafetensorsFile::read(const TensorInfo& tensor, std::span<std::byte> out) const {
  if (out.size() != tensor.size_bytes) {
    throw InvalidArgument(fmt::format("tensor {} has {} bytes, the buffer for it {}", quote_name(tensor.name),
                                      tensor.size_bytes, out.size()));
  }
  read_range(tensor, 0, out);
}

void SafetensorsFile::read_range(const TensorInfo& tensor, std::uint64_t offset_bytes,
                                 std::span<std::byte> out) const {
  check_range(tensor, offset_bytes, out.size());
  read_exactly(fd_, out, tensor.offset_bytes + offset_bytes, path_);
}

void SafetensorsFile::read_bytes(std::uint64_t offset_bytes, std::span<std::byte> out) const {
  const auto end = try_add(offset_bytes, std::uint64_t{out.size()});
  if (!end || *end > identity_.size_bytes) {
    throw InvalidArgument(fmt::format("{} bytes from byte {} asked of '{}', which has {}", out.size(),
                                      offset_bytes, path_, identity_.size_bytes));
  }
  read_exactly(fd_, out, offset_bytes, path_);
}

void SafetensorsFile::check_unchanged() const {
  const FileIdentity now = identify(fd_, path_);
  if (now == identity_) return;
  throw IoError("cannot trust", path_, 0, 0,
                now.size_bytes != identity_.size_bytes
                    ? fmt::format("the file had {} bytes when it was opened and has {} now",
                                  identity_.size_bytes, now.size_bytes)
                    : std::string("the file was written to after it was opened"));
}

std::span<const std::byte> SafetensorsFile::map(const TensorInfo& tensor) const {
  check_range(tensor, 0, tensor.size_bytes);
  if (tensor.size_bytes == 0) return {};
  const std::lock_guard lock(views_->mutex);
  if (views_->mapping.bytes().empty() && !views_->mapping_refused) {
    try {
      views_->mapping = MappedFile(fd_, path_);
    } catch (const IoError& error) {
      views_->mapping_refused = true;
      log().info("{}: its tensors are read into memory", error.what());
    }
    // After mapping: a file that shrank earlier than this would fault where its tail is touched.
    check_unchanged();
  }
  if (!views_->mapping_refused)
    return views_->mapping.bytes().subspan(tensor.offset_bytes, tensor.size_bytes);

  const auto known = views_->read_tensors.find(tensor.offset_bytes);
  if (known != views_->read_tensors.end()) return known->second;
  std::vector<std::byte> bytes(tensor.size_bytes);
  read(tensor, bytes);
  return views_->read_tensors.emplace(tensor.offset_bytes, std::move(bytes)).first->second;
}

}  // namespace metrale::weights
