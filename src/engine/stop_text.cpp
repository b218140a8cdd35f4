// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_text.h"

#include <algorithm>
#include <utility>

namespace metrale::engine {
namespace {

// How many bytes at the end of `text` are the start of `stop`, and not all of it.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::string StopText::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    found_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, begun(held_, stop));
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopText::finish() {
  return std::exchange(held_, {});
}

}  // namespace metrale::engine
