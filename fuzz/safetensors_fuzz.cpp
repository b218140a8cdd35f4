// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: weights
// Any bytes as a safetensors file: refused with FormatError, or sound and the same after writing it again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/weights/safetensors.h>
#include <metrale/weights/safetensors_writer.h>

namespace {

using namespace metrale::weights;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_sound(const SafetensorsHeader& header, std::uint64_t data_start, std::uint64_t file_size) {
  std::uint64_t expected = data_start;
  for (const TensorInfo& tensor : header.tensors()) {
    require(tensor.offset_bytes == expected);
    require(tensor.num_elems() * bits(tensor.dtype) == tensor.size_bytes * 8);
    require(header.find(tensor.name) == &tensor);
    expected += tensor.size_bytes;
  }
  require(expected == file_size);
}

void check_rewritten(const SafetensorsHeader& header, std::span<const std::byte> file) {
  std::vector<TensorData> tensors;
  for (const TensorInfo& info : header.tensors()) {
    tensors.push_back({info.name, info.dtype, info.shape, file.subspan(info.offset_bytes, info.size_bytes)});
  }
  const SafetensorsLayout layout = lay_out_safetensors(tensors, header.metadata());
  const auto json = std::as_bytes(std::span(layout.prefix)).subspan(kLengthPrefixBytes);
  const auto again = SafetensorsHeader::parse(json, layout.prefix.size() + header.data_bytes(), "rewritten");
  require(again.metadata() == header.metadata() && again.tensors().size() == tensors.size());
  for (const TensorInfo& info : header.tensors()) {
    const TensorInfo* found = again.find(info.name);
    require(found != nullptr && found->dtype == info.dtype && found->shape == info.shape &&
            found->size_bytes == info.size_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  try {
    const auto prefix = file.first(std::min<std::size_t>(size, kLengthPrefixBytes));
    const std::uint64_t length = SafetensorsHeader::parse_length(prefix, size, "input");
    const auto header = SafetensorsHeader::parse(file.subspan(kLengthPrefixBytes, length), size, "input");
    check_sound(header, kLengthPrefixBytes + length, size);
    check_rewritten(header, file);
  } catch (const metrale::FormatError& error) {
    require(error.offset() <= size && !error.problem().empty());
  }
  return 0;
}
