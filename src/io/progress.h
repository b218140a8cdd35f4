// SPDX-License-Identifier: Apache-2.0
// Progress: how far a transfer has come and what to ask for next. The only place that knows short transfers,
// interruptions and early ends; File and IoQueue feed it what the system answers.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <metrale/io/io_engine.h>

namespace metrale::io {

class Progress {
 public:
  enum class Step : std::uint8_t { kMore, kDone, kEndOfFile, kFailed };
  struct Attempt {
    std::uint64_t at = 0;  // from the start of the transfer
    std::uint32_t bytes = 0;
  };
  // Of one call; the kernel's own limit is a page less than 2 GiB, and it returns short there.
  static constexpr std::uint64_t kMaxAttemptBytes = std::uint64_t{1} << 30;
  // Answers in a row that bring nothing; then the transfer fails with the last of them.
  static constexpr std::uint32_t kMaxFruitless = 1000;

  Progress() = default;
  // `granule_bytes`: what the start of an attempt must be a multiple of; 1 for buffered files.
  Progress(IoKind kind, std::uint64_t bytes, std::uint32_t granule_bytes)
      : total_(bytes), granule_(granule_bytes), kind_(kind) {}

  [[nodiscard]] Attempt next() const {
    const std::uint64_t at = done_ - done_ % granule_;
    return {.at = at, .bytes = static_cast<std::uint32_t>(std::min(total_ - at, kMaxAttemptBytes))};
  }

  // The answer to next(): bytes, or a negative code.
  [[nodiscard]] Step take(std::int64_t result) {
    const Attempt attempt = next();
    // A thread that ends takes what it has in flight with io_uring with it: ECANCELED, which nobody else asks
    // for.
    if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) return nothing(-result);
    if (result < 0) return failed(-result);
    if (result > attempt.bytes) return failed(EIO);
    const std::uint64_t reached = attempt.at + static_cast<std::uint64_t>(result);
    if (kind_ == IoKind::kRead && (result == 0 || reached == done_)) return Step::kEndOfFile;
    if (reached <= done_) return nothing(EIO);
    done_ = reached;
    fruitless_ = 0;
    return done_ == total_ ? Step::kDone : Step::kMore;
  }

  [[nodiscard]] std::uint64_t done_bytes() const { return done_; }
  // An errno value; EIO for a code of the engine's library.
  [[nodiscard]] int error_number() const { return error_ > kMaxErrno ? EIO : static_cast<int>(error_); }
  [[nodiscard]] int library_code() const { return error_ > kMaxErrno ? static_cast<int>(error_) : 0; }

 private:
  Step nothing(std::int64_t error) { return ++fruitless_ < kMaxFruitless ? Step::kMore : failed(error); }
  Step failed(std::int64_t error) {
    error_ = error;
    return Step::kFailed;
  }

  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
  std::int64_t error_ = 0;
  std::uint32_t granule_ = 1;
  std::uint32_t fruitless_ = 0;
  IoKind kind_ = IoKind::kRead;
};

}  // namespace metrale::io
