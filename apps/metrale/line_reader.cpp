// SPDX-License-Identifier: Apache-2.0
#include "line_reader.h"

#include <cerrno>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <metrale/base/error.h>

namespace metrale::app {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

}  // namespace

LineReader::LineReader(int fd, std::string name, std::uint64_t max_line_bytes)
    : fd_(fd), name_(std::move(name)), max_line_bytes_(max_line_bytes) {}

bool LineReader::is_readable(std::chrono::milliseconds timeout) const {
  pollfd poll{.fd = fd_, .events = POLLIN, .revents = 0};
  // A signal counts as nothing yet: the caller looks at its flag and comes back.
  return ::poll(&poll, 1, static_cast<int>(timeout.count())) > 0;
}

// Reads more; false where nothing came.
bool LineReader::fill() {
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  if (buffer_.size() > max_line_bytes_) {
    dropped_bytes_ += buffer_.size();
    buffer_.clear();
    searched_ = 0;
  }
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kChunkBytes);
  const ssize_t got = ::read(fd_, buffer_.data() + before, kChunkBytes);
  const int error_number = errno;
  buffer_.resize(before + static_cast<std::size_t>(got > 0 ? got : 0));
  if (got < 0 && error_number != EINTR && error_number != EAGAIN)
    throw IoError("cannot read", name_, error_number, offset_);
  ended_ = got == 0;
  return got > 0;
}

void LineReader::take(std::size_t size, TextLine& line) {
  line.number = ++number_;
  line.offset = offset_;
  line.has_end = begin_ + size < buffer_.size();
  line.too_long = dropped_bytes_ + size > max_line_bytes_;
  line.text.clear();
  if (!line.too_long) line.text.assign(buffer_, begin_, size);
  if (line.has_end && line.text.ends_with('\r')) line.text.pop_back();
  begin_ += size + (line.has_end ? 1 : 0);
  offset_ += dropped_bytes_ + size + (line.has_end ? 1 : 0);
  line.end = offset_;
  searched_ = begin_;
  dropped_bytes_ = 0;
}

LineReader::Status LineReader::next(TextLine& line, std::chrono::milliseconds timeout) {
  for (;;) {
    const std::size_t newline = buffer_.find('\n', searched_);
    if (newline != std::string::npos) {
      take(newline - begin_, line);
      return Status::kLine;
    }
    searched_ = buffer_.size();
    if (ended_) {
      if (begin_ == buffer_.size() && dropped_bytes_ == 0) return Status::kEnd;
      take(buffer_.size() - begin_, line);
      return Status::kLine;
    }
    if (!is_readable(timeout) || (!fill() && !ended_)) return Status::kNothingYet;
  }
}

}  // namespace metrale::app
