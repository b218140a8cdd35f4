// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

namespace metrale::app {

ProgressLine::ProgressLine(std::string_view label)
    : label_(label), on_terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressLine::update(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  show([&] {
    const double total = static_cast<double>(total_bytes);
    const double percent = total_bytes == 0 ? 100.0 : 100.0 * static_cast<double>(done_bytes) / total;
    return fmt::format("{:3.0f} % of {:.2f} GB", percent, total / 1e9);
  });
}

void ProgressLine::show(const std::function<std::string()>& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!on_terminal_ || now < next_draw_) return;
  next_draw_ = now + std::chrono::milliseconds(100);
  drawn_ = true;
  fmt::print(stderr, "\r\x1b[K{} {}", label_, text());
  std::fflush(stderr);
}

void ProgressLine::clear() {
  if (!drawn_) return;
  drawn_ = false;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace metrale::app
