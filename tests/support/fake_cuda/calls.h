// SPDX-License-Identifier: Apache-2.0
// What happens to every call of the driver before it does its work: it is counted, may be made to fail, needs
// a context that is current and not lost. thunk<> wraps a call so.
#pragma once

#include <algorithm>
#include <cstddef>

#include "support/fake_cuda/machine.h"

namespace fake_cuda {

enum class CallKind {
  kText,     // names of errors: neither counted nor failed
  kGlobal,   // needs no context
  kContext,  // needs one
  kRelease,  // needs one; gives back or waits, also where a test makes it fail
  kGlobalRelease,
};

struct CallName {
  template <std::size_t n>
  consteval CallName(const char (&literal)[n]) {
    static_assert(n <= sizeof(text));
    std::copy_n(literal, n, text);
  }
  char text[40]{};
};

// Counts it; the result that a test wants instead of its own, else success.
[[nodiscard]] Result begin_call(const char* name);
[[nodiscard]] Result context_state();

template <CallName name, CallKind kind, auto work>
struct Thunk;
template <CallName name, CallKind kind, class... Args, Result (*work)(Args...)>
struct Thunk<name, kind, work> {
  static Result call(Args... args) {
    if constexpr (kind == CallKind::kText) return work(args...);
    const Result wanted = begin_call(name.text);
    constexpr bool releases = kind == CallKind::kRelease || kind == CallKind::kGlobalRelease;
    if (wanted != driver::kSuccess && !releases) return wanted;
    if constexpr (kind == CallKind::kContext || kind == CallKind::kRelease) {
      if (const Result state = context_state(); state != driver::kSuccess) return state;
    }
    const Result result = work(args...);
    return wanted != driver::kSuccess ? wanted : result;
  }
};

struct Entry {
  const char* name;
  void* function;
};
template <CallName name, CallKind kind, auto work>
[[nodiscard]] Entry entry() {
  static constexpr CallName kName = name;
  return {kName.text, reinterpret_cast<void*>(&Thunk<name, kind, work>::call)};
}

// Where tests steer the calls.
namespace steering {
void reset();
void fail(const char* function, int n, Result result);
void fail_always(const char* function, Result result);
[[nodiscard]] const char* struck();
[[nodiscard]] int calls(const char* function);
void forget_calls();
void hide(const char* function);
[[nodiscard]] bool is_hidden(const char* function);
}  // namespace steering

}  // namespace fake_cuda
