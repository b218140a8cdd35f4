// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <weights/json_text.h>
#include <weights/names.h>
#include <weights/tensor_bits.h>

#include <fmt/format.h>
#include <simdjson.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/weights/atomic_file.h>
#include <metrale/weights/safetensors.h>
#include <metrale/weights/safetensors_writer.h>

namespace metrale::weights {
namespace {

constexpr std::size_t kPaddingBytes = 8;

void require_utf8(std::string_view text, std::string_view what) {
  if (!simdjson::validate_utf8(text)) throw InvalidArgument(fmt::format("{} is not UTF-8", what));
}

// The bytes that a tensor takes in the file.
std::uint64_t checked_size_bytes(const TensorSpec& tensor) {
  require_utf8(tensor.name, "a tensor's name");
  if (tensor.name == kMetadataKey) throw InvalidArgument("no tensor can be named __metadata__");
  const auto fail = [&](std::string_view problem) {
    throw InvalidArgument(fmt::format("tensor {}: shape {} of {} {}", quote_name(tensor.name),
                                      shape_text(tensor.shape), to_string(tensor.dtype), problem));
  };
  const std::optional<std::uint64_t> total = tensor_bits(tensor.shape, tensor.dtype);
  if (!total) fail("overflows 64 bits");
  if (*total % 8 != 0) fail(fmt::format("does not fill whole bytes: {} bits", *total));
  return *total / 8;
}

void check_data(const TensorData& tensor) {
  const std::uint64_t size_bytes = checked_size_bytes({tensor.name, tensor.dtype, tensor.shape});
  if (size_bytes == tensor.bytes.size()) return;
  throw InvalidArgument(fmt::format("tensor {}: shape {} of {} takes {} bytes, got {}",
                                    quote_name(tensor.name), shape_text(tensor.shape),
                                    to_string(tensor.dtype), size_bytes, tensor.bytes.size()));
}

void check_names(std::span<const TensorSpec> tensors) {
  const auto name_at = [&](std::uint32_t i) -> std::string_view { return tensors[i].name; };
  const NameIndex index(narrow<std::uint32_t>(tensors.size(), "too many tensors for one file"), name_at);
  if (const auto pair = index.duplicate(name_at)) {
    throw InvalidArgument(fmt::format("two tensors are named {}", quote_name(name_at(pair->first))));
  }
}

void append_metadata(std::string& json, const SafetensorsMetadata& metadata) {
  append_json_string(json, kMetadataKey);
  json += ":{";
  std::string_view separator;
  for (const auto& [key, value] : metadata) {
    require_utf8(key, "a metadata key");
    require_utf8(value, fmt::format("metadata {}", quote_name(key)));
    json += std::exchange(separator, ",");
    append_json_string(json, key);
    json += ':';
    append_json_string(json, value);
  }
  json += '}';
}

void append_tensor(std::string& json, const TensorSpec& tensor, std::uint64_t begin, std::uint64_t end) {
  append_json_string(json, tensor.name);
  json += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", to_string(tensor.dtype),
                      fmt::join(tensor.shape, ","), begin, end);
}

// The length, little-endian, and the text, padded so that the data begin at a multiple of 8.
std::string with_length(std::string json) {
  json.append(round_up(json.size(), kPaddingBytes) - json.size(), ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw InvalidArgument(
        fmt::format("the header takes {} bytes, at most {} can be read back: write several files",
                    json.size(), kMaxHeaderBytes));
  }
  const std::uint64_t length = json.size();
  std::string prefix(kLengthPrefixBytes, '\0');
  std::memcpy(prefix.data(), &length, sizeof(length));
  return prefix + json;
}

}  // namespace

SafetensorsLayout lay_out_safetensors(std::span<const TensorData> tensors,
                                      const SafetensorsMetadata& metadata) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const TensorData& tensor : tensors) {
    check_data(tensor);
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  return lay_out_tensor_specs(specs, metadata);
}

SafetensorsLayout lay_out_tensor_specs(std::span<const TensorSpec> tensors,
                                       const SafetensorsMetadata& metadata) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) sizes.push_back(checked_size_bytes(tensor));
  check_names(tensors);
  SafetensorsLayout layout;
  layout.order.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::sort(layout.order.begin(), layout.order.end(), [&](std::size_t a, std::size_t b) {
    if (tensors[a].dtype != tensors[b].dtype) return tensors[a].dtype > tensors[b].dtype;
    return tensors[a].name < tensors[b].name;
  });

  std::string json = "{";
  if (!metadata.empty()) append_metadata(json, metadata);
  std::uint64_t begin = 0;
  for (const std::size_t i : layout.order) {
    if (json.size() > 1) json += ',';
    const std::uint64_t end = checked_add(begin, sizes[i]);
    append_tensor(json, tensors[i], begin, end);
    begin = end;
  }
  json += '}';
  layout.prefix = with_length(std::move(json));
  return layout;
}

void write_safetensors(const std::string& path, std::span<const TensorData> tensors,
                       const SafetensorsMetadata& metadata) {
  const SafetensorsLayout layout = lay_out_safetensors(tensors, metadata);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(layout.prefix)));
  for (const std::size_t i : layout.order) file.write(tensors[i].bytes);
  file.commit();
}

}  // namespace metrale::weights
