// SPDX-License-Identifier: Apache-2.0
// Threads that call pread and pwrite.
#include <bit>
#include <cerrno>
#include <unistd.h>

#include "io/engines.h"
#include "io/transfer_workers.h"

namespace metrale::io {
namespace {

std::int64_t transfer_by_call(const RawTransfer& transfer) {
  void* const memory = std::bit_cast<void*>(transfer.address);
  const auto offset = static_cast<off_t>(transfer.offset);
  const ssize_t result = transfer.kind == IoKind::kRead
                             ? ::pread(transfer.fd, memory, transfer.bytes, offset)
                             : ::pwrite(transfer.fd, memory, transfer.bytes, offset);
  return result >= 0 ? result : -errno;
}

class PosixEngine final : public IoEngine {
 public:
  explicit PosixEngine(const IoOptions& options)
      : IoEngine(options.limits),
        workers_(options.threads, options.limits.depth, options.on_thread_start, transfer_by_call) {}

 private:
  std::string_view do_name() const override { return "posix"; }
  IoCapabilities do_capabilities() const override { return {.max_depth = limits().depth}; }
  std::size_t do_submit(std::span<const RawTransfer> transfers) override {
    return workers_.submit(transfers);
  }
  std::size_t do_reap(std::span<RawCompletion> out, IoTime deadline) override {
    return workers_.reap(out, deadline);
  }

  TransferWorkers workers_;
};

}  // namespace

std::unique_ptr<IoEngine> make_posix_engine(const IoOptions& options) {
  return std::make_unique<PosixEngine>(options);
}

}  // namespace metrale::io
