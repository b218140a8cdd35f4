// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fcntl.h>

#include <metrale/base/error.h>
#include <metrale/io/fault.h>

namespace metrale::io {

void FaultFileCalls::fail(FileFault point, std::uint64_t nth, int error_number, std::uint64_t times) {
  expects(nth != 0, "the next call is number 1");
  const std::scoped_lock lock(mutex_);
  State& state = states_[static_cast<std::size_t>(point)];
  state.first = state.calls + nth;
  state.last = state.first + times - 1;
  state.error_number = error_number;
}

void FaultFileCalls::limit_transfers(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  limit_bytes_ = bytes;
}

std::uint64_t FaultFileCalls::calls(FileFault point) const {
  const std::scoped_lock lock(mutex_);
  return states_[static_cast<std::size_t>(point)].calls;
}

int FaultFileCalls::due(FileFault point) {
  const std::scoped_lock lock(mutex_);
  State& state = states_[static_cast<std::size_t>(point)];
  ++state.calls;
  return state.calls >= state.first && state.calls <= state.last ? state.error_number : 0;
}

std::size_t FaultFileCalls::limited(std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  return limit_bytes_ == 0 ? bytes : std::min(bytes, limit_bytes_);
}

int FaultFileCalls::do_open(const std::string& path, int flags) {
  const int error = due((flags & O_DIRECT) != 0 ? FileFault::kOpenDirect : FileFault::kOpen);
  return error != 0 ? -error : inner_.open(path, flags);
}

std::int64_t FaultFileCalls::do_read(int fd, std::span<std::byte> out, std::uint64_t offset) {
  const int error = due(FileFault::kRead);
  return error != 0 ? -error : inner_.read(fd, out.first(limited(out.size())), offset);
}

std::int64_t FaultFileCalls::do_write(int fd, std::span<const std::byte> from, std::uint64_t offset) {
  const int error = due(FileFault::kWrite);
  return error != 0 ? -error : inner_.write(fd, from.first(limited(from.size())), offset);
}

}  // namespace metrale::io
