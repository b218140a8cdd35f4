// SPDX-License-Identifier: Apache-2.0
// StreamFailure: the first error of a stream, as it travels to waiters and to the host.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>

#include <metrale/base/error.h>

namespace metrale::backends::cpu {

// Kept as text: each thrower makes its own exception, so that no two threads share one.
struct StreamFailure {
  std::string call;
  std::string detail;
  int code = 1;
};
// CUDA's number for the same.
inline constexpr int kOutOfMemoryCode = 2;
using FailurePtr = std::shared_ptr<const StreamFailure>;

// Runs `work`. Null where it returns, else what it threw, under the name that `name()` makes.
template <class Work, class Name>
[[nodiscard]] FailurePtr run_and_catch(Work&& work, Name&& name) {
  try {
    work();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return std::make_shared<const StreamFailure>(
        StreamFailure{name(), "not enough host memory", kOutOfMemoryCode});
  } catch (const OutOfMemory& error) {
    return std::make_shared<const StreamFailure>(StreamFailure{name(), error.what(), kOutOfMemoryCode});
  } catch (const std::exception& error) {
    return std::make_shared<const StreamFailure>(StreamFailure{name(), error.what()});
  } catch (...) {
    return std::make_shared<const StreamFailure>(
        StreamFailure{name(), "it threw something that is no std::exception"});
  }
}

inline void throw_if_failed(const FailurePtr& failure) {
  if (failure != nullptr) throw DeviceError(failure->call, failure->code, failure->detail);
}

}  // namespace metrale::backends::cpu
