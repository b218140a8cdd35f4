// SPDX-License-Identifier: Apache-2.0
#include <system_error>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/io/make_queue.h>

#include "io/engines.h"

namespace metrale::io {
namespace {

constexpr std::uint32_t kMaxDepth = 4096;
constexpr std::uint32_t kMaxTable = 16384;  // the kernel's for fixed buffers

void check(const IoOptions& options) {
  const EngineLimits& limits = options.limits;
  expects(limits.depth >= 1 && limits.depth <= kMaxDepth, "the depth of an I/O queue is 1 to 4096");
  expects(limits.max_files >= 1 && limits.max_files <= kMaxTable,
          "an I/O queue has room for 1 to 16384 files");
  expects(limits.max_buffers >= 1 && limits.max_buffers <= kMaxTable,
          "an I/O queue has room for 1 to 16384 buffers");
}

}  // namespace

std::unique_ptr<IoEngine> make_io_engine(const IoOptions& options) {
  check(options);
  if (options.kind == IoEngineKind::kPosix) return make_posix_engine(options);
  if (options.kind == IoEngineKind::kCufile) return make_cufile_engine(options);
  int error_number = 0;
  std::unique_ptr<IoEngine> engine = try_make_uring_engine(options, error_number);
  if (engine != nullptr) return engine;
  const std::string reason = std::generic_category().message(error_number);
  if (options.kind == IoEngineKind::kUring) {
    throw Unsupported("this system", fmt::format("io_uring ({})", reason));
  }
  log().warn("io: the system refuses io_uring ({}); files are read by {} threads", reason, options.threads);
  return make_posix_engine(options);
}

std::unique_ptr<IoQueue> make_io_queue(const IoOptions& options) {
  return std::make_unique<IoQueue>(make_io_engine(options));
}

}  // namespace metrale::io
