// SPDX-License-Identifier: Apache-2.0
// What happens where the system gives no more threads: for the child process of a death test.
#pragma once

#include <sys/resource.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace metrale {

// Calls body() after that, for root as a user who can open only what everybody can. An exit code: 0 where it
// returned true, 5 where not; others: threads can be had.
template <class Body>
int run_without_threads(Body&& body) {
  // A limit on the processes of a user counts threads too; it does not bind root.
  constexpr uid_t kNobodysUser = 65'531;
  if (::geteuid() == 0 && ::setuid(kNobodysUser) != 0) return 2;
  const rlimit one{1, 1};
  if (::setrlimit(RLIMIT_NPROC, &one) != 0) return 3;
  try {
    std::thread([] {}).join();
    return 4;
  } catch (const std::system_error&) {
    return std::forward<Body>(body)() ? 0 : 5;
  }
}

}  // namespace metrale
