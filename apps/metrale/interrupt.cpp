// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <atomic>
#include <csignal>

namespace metrale::app {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  g_interrupted = true;
}

}  // namespace

void watch_interrupts() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  // One-shot: the second Ctrl-C has its default effect.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // A closed pipe is a write error that is reported, not a silent death.
  ::signal(SIGPIPE, SIG_IGN);
}

bool interrupted() {
  return g_interrupted;
}

}  // namespace metrale::app
