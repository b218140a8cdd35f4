// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include <metrale/base/checked.h>
#include <metrale/weights/file_layout.h>

namespace metrale::weights {

FileLayout file_layout(std::span<const TensorLoad> loads) {
  const auto position = [&](std::size_t i) {
    const TensorLoad& load = loads[i];
    return std::pair(load.tensor.file_index(), load.tensor.info().offset_bytes + load.begin_bytes);
  };
  std::vector<std::size_t> order(loads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return position(a) < position(b); });
  FileLayout layout;
  layout.offsets.resize(loads.size());
  std::pair<std::uint32_t, std::uint64_t> expected{};
  for (const std::size_t i : order) {
    if (loads[i].size_bytes == 0) continue;
    const auto [file, begin] = position(i);
    if (layout.size_bytes == 0 || std::pair(file, begin) != expected) {
      layout.size_bytes =
          checked_add(round_up(layout.size_bytes, kFileLayoutAlignment), begin % kFileLayoutAlignment);
    }
    layout.offsets[i] = layout.size_bytes;
    layout.size_bytes = checked_add(layout.size_bytes, loads[i].size_bytes);
    expected = {file, begin + loads[i].size_bytes};
  }
  return layout;
}

}  // namespace metrale::weights
