// SPDX-License-Identifier: Apache-2.0
// spin_until: the short wait before a thread goes to sleep.
#pragma once

#include <chrono>

namespace metrale {

inline constexpr std::chrono::microseconds kSpinTime{20};

// True as soon as `ready()` is; false after kSpinTime.
template <class Ready>
[[nodiscard]] bool spin_until(Ready&& ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

}  // namespace metrale
