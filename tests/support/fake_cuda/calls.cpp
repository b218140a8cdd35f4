// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/calls.h"

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace fake_cuda {
namespace {

struct Wish {
  std::optional<std::string> function;  // none: any
  int in = 0;                           // calls until it comes true; 0: it has
  Result result = driver::kSuccess;
};

struct Steering {
  std::mutex mutex;
  Wish once;
  std::map<std::string, Result> always;
  std::map<std::string, int> calls;
  std::set<std::string> hidden;
  std::string struck;
};

Steering& state() {
  static Steering& s = *new Steering;
  return s;
}

Result wanted_result(const char* name) {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  ++s.calls[name];
  if (s.once.in > 0 && (!s.once.function || *s.once.function == name) && --s.once.in == 0) {
    s.struck = name;
    return s.once.result;
  }
  const auto always = s.always.find(name);
  return always == s.always.end() ? driver::kSuccess : always->second;
}

}  // namespace

Result begin_call(const char* name) {
  const Result wanted = wanted_result(name);
  if (wanted == kIllegalAddress) {
    for (Device& device : machine().devices) lose_context(device);
  }
  return wanted;
}

Result context_state() {
  const Context* const context = current_context();
  if (context == nullptr || context->references == 0) return driver::kErrorInvalidContext;
  return context->lost->load() ? kIllegalAddress : driver::kSuccess;
}

namespace steering {

void reset() {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  s.once = {};
  s.always.clear();
  s.calls.clear();
  s.hidden.clear();
  s.struck.clear();
}

void fail(const char* function, int n, Result result) {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  s.once = {.function = std::nullopt, .in = n, .result = result};
  if (function != nullptr) s.once.function = function;
  s.struck.clear();
}

void fail_always(const char* function, Result result) {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  s.always[function] = result;
}

const char* struck() {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  return s.struck.c_str();
}

int calls(const char* function) {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  if (function != nullptr) return s.calls[function];
  int sum = 0;
  for (const auto& [name, count] : s.calls) sum += count;
  return sum;
}

void forget_calls() {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  s.calls.clear();
}

void hide(const char* function) {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  s.hidden.insert(function);
}

bool is_hidden(const char* function) {
  Steering& s = state();
  const std::scoped_lock lock(s.mutex);
  return s.hidden.contains(function);
}

}  // namespace steering
}  // namespace fake_cuda
