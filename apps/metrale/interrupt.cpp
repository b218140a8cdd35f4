// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <array>
#include <atomic>
#include <csignal>
#include <unistd.h>

namespace metrale::app {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// One program writes few files at a time; what finds no place here is only not removed.
std::array<std::atomic<const char*>, 4> g_unfinished{};

// Calls only what a signal handler may.
void on_signal(int number) {
  if (!g_interrupted.exchange(true)) return;
  for (const auto& unfinished : g_unfinished) {
    if (const char* path = unfinished.load()) ::unlink(path);
  }
  ::_exit(128 + number);
}

}  // namespace

void watch_interrupts() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // A closed pipe is a write error that is reported, not a silent death.
  ::signal(SIGPIPE, SIG_IGN);
  // So is a file beyond the process's limit on file sizes.
  ::signal(SIGXFSZ, SIG_IGN);
}

bool interrupted() {
  return g_interrupted;
}

void remove_on_second_interrupt(const char* path) {
  for (auto& unfinished : g_unfinished) {
    const char* none = nullptr;
    if (unfinished.compare_exchange_strong(none, path)) return;
  }
}

void keep_on_second_interrupt(const char* path) {
  for (auto& unfinished : g_unfinished) {
    const char* same = path;
    if (unfinished.compare_exchange_strong(same, nullptr)) return;
  }
}

}  // namespace metrale::app
