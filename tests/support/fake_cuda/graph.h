// SPDX-License-Identifier: Apache-2.0
// Captures and graphs of the fake driver.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "support/fake_cuda/stream.h"

namespace fake_cuda {

inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureInvalidated = 901;
inline constexpr Result kCaptureMerge = 902;
inline constexpr Result kCaptureUnmatched = 903;
inline constexpr Result kCaptureUnjoined = 904;
inline constexpr Result kCaptureIsolation = 905;
inline constexpr Result kCapturedEvent = 907;

struct Node {
  Command command;
  std::vector<std::size_t> after;
};

// What a capture has recorded. Guarded by the machine's lock.
class Capture {
 public:
  explicit Capture(const Stream& origin);

  [[nodiscard]] const Stream* origin() const { return origin_; }
  [[nodiscard]] const std::map<const Stream*, std::set<std::size_t>>& streams() const { return last_; }
  // The nodes that the next one on `stream` follows.
  [[nodiscard]] std::vector<std::size_t> point(const Stream& stream) const;
  void add(const Stream& stream, Command command);
  void join(const Stream& stream, const std::vector<std::size_t>& nodes);
  // Everything recorded comes before the end of the origin.
  [[nodiscard]] bool is_joined() const;
  [[nodiscard]] std::vector<Node> take_nodes() { return std::move(nodes_); }

  bool is_over = false;
  bool is_invalid = false;

 private:
  const Stream* origin_;
  std::vector<Node> nodes_;
  std::map<const Stream*, std::set<std::size_t>> last_;
};

struct Graph {
  std::vector<Node> nodes;
};

// Its replays follow each other.
struct GraphExec {
  std::vector<Command> commands;  // in an order that the dependencies allow
  std::mutex mutex;
  std::shared_ptr<Mark> last;  // of the latest replay
};

// The last node that may run goes first: a dependency that is missing shows.
[[nodiscard]] std::vector<Command> in_hardest_order(const std::vector<Node>& nodes);

// Records `command` where the stream is capturing, enqueues it elsewhere; it is dropped where the context is
// lost by then.
[[nodiscard]] Result submit(driver::DriverStream stream, Command command);
// The capture that the stream takes part in is of no use any more.
void invalidate_capture(Stream& stream);
// The stream, or why not: an unknown handle, or one of another context.
[[nodiscard]] std::shared_ptr<Stream> find_stream(driver::DriverStream stream);

}  // namespace fake_cuda
