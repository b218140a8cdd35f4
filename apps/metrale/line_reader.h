// SPDX-License-Identifier: Apache-2.0
// LineReader: the lines of a file or pipe, one at a time, without waiting where the caller has other work.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace metrale::app {

struct TextLine {
  std::string text;          // without its end ("\n" or "\r\n")
  std::uint64_t number = 0;  // from 1, empty ones counted
  std::uint64_t offset = 0;  // of its first byte in the input
  std::uint64_t end = 0;     // of the next line's
  bool has_end = false;      // a newline, which the last line may lack
  bool too_long = false;     // then `text` is empty
};

class LineReader {
 public:
  // `fd` stays the caller's and outlives this; `name` is for messages.
  LineReader(int fd, std::string name, std::uint64_t max_line_bytes);

  enum class Status : std::uint8_t { kLine, kNothingYet, kEnd };
  // Waits for input at most so long; a regular file never makes it wait. Throws IoError.
  Status next(TextLine& line, std::chrono::milliseconds timeout);

  // Up to the end of the last line.
  [[nodiscard]] std::uint64_t bytes() const { return offset_; }

 private:
  [[nodiscard]] bool is_readable(std::chrono::milliseconds timeout) const;
  bool fill();
  void take(std::size_t size, TextLine& line);

  int fd_;
  std::string name_;
  std::uint64_t max_line_bytes_;
  std::string buffer_;               // from the current line's start on, but for what was dropped
  std::size_t begin_ = 0;            // of that line in the buffer
  std::size_t searched_ = 0;         // no newline before it
  std::uint64_t dropped_bytes_ = 0;  // of a line that is too long
  std::uint64_t offset_ = 0;
  std::uint64_t number_ = 0;
  bool ended_ = false;
};

}  // namespace metrale::app
