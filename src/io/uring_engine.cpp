// SPDX-License-Identifier: Apache-2.0
// io_uring: one ring, with tables of fixed files and buffers where the system gives them.
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <liburing.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>

#include "io/engines.h"

namespace metrale::io {
namespace {

constexpr unsigned kPollerIdleMs = 2000;

std::string locked_memory_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return fmt::format("{} KiB", limit.rlim_cur / 1024);
}

bool comes_again(int error) {
  return error == EINTR || error == EAGAIN || error == EBUSY || error == ETIME;
}

class UringEngine final : public IoEngine {
 public:
  // Takes over a ring that was set up.
  UringEngine(const IoOptions& options, const io_uring& ring)
      : IoEngine(options.limits), ring_(ring), has_poller_(options.sq_polling) {
    if (!options.use_registered) return;
    has_files_ = ::io_uring_register_files_sparse(&ring_, limits().max_files) == 0;
    has_buffers_ = ::io_uring_register_buffers_sparse(&ring_, limits().max_buffers) == 0;
  }
  ~UringEngine() override { ::io_uring_queue_exit(&ring_); }
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;

 private:
  std::string_view do_name() const override { return "io_uring"; }
  IoCapabilities do_capabilities() const override {
    return {.registered_buffers = has_buffers_, .registered_files = has_files_, .max_depth = limits().depth};
  }

  bool do_register_buffer(std::uint32_t slot, MemoryKind, std::uint64_t address,
                          std::uint64_t bytes) override {
    if (!has_buffers_) return false;
    const int result = update_buffer(slot, {.iov_base = std::bit_cast<void*>(address), .iov_len = bytes});
    if (result == 1) return true;
    if (!has_warned_) {
      log().warn(
          "io: io_uring cannot pin a buffer of {} bytes ({}; RLIMIT_MEMLOCK is {}); transfers go on without",
          bytes, std::generic_category().message(-result), locked_memory_limit());
      has_warned_ = true;
    }
    return false;
  }
  void do_unregister_buffer(std::uint32_t slot) noexcept override {
    static_cast<void>(update_buffer(slot, {.iov_base = nullptr, .iov_len = 0}));
  }
  bool do_register_file(std::uint32_t slot, int fd, const std::string&) override {
    return has_files_ && ::io_uring_register_files_update(&ring_, slot, &fd, 1) == 1;
  }
  void do_unregister_file(std::uint32_t slot) noexcept override {
    const int none = -1;
    static_cast<void>(::io_uring_register_files_update(&ring_, slot, &none, 1));
  }

  std::size_t do_submit(std::span<const RawTransfer> transfers) override {
    std::size_t taken = 0;
    for (const RawTransfer& transfer : transfers) {
      io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
      if (entry == nullptr) break;
      fill(*entry, transfer);
      ++taken;
    }
    // What the system does not take now lies in the ring and is offered again by do_reap, which may also
    // throw: here the caller would not know what was taken.
    static_cast<void>(::io_uring_submit(&ring_));
    return taken;
  }

  std::size_t do_reap(std::span<RawCompletion> out, IoTime deadline) override {
    if (::io_uring_sq_ready(&ring_) != 0) check(::io_uring_submit(&ring_));
    const std::size_t count = take_answers(out);
    if (count != 0 || deadline == kNoWait) return count;
    // Nothing may be in flight that could end this wait.
    if (!has_poller_ && ::io_uring_sq_ready(&ring_) != 0) return 0;
    wait(deadline);
    return take_answers(out);
  }

  static void fill(io_uring_sqe& entry, const RawTransfer& transfer) {
    void* const memory = std::bit_cast<void*>(transfer.address);
    const bool is_fixed_file = transfer.file_slot != kNoSlot;
    const int fd = is_fixed_file ? static_cast<int>(transfer.file_slot) : transfer.fd;
    const auto buffer = static_cast<int>(transfer.buffer_slot);
    if (transfer.buffer_slot != kNoSlot) {
      if (transfer.kind == IoKind::kRead) {
        ::io_uring_prep_read_fixed(&entry, fd, memory, transfer.bytes, transfer.offset, buffer);
      } else {
        ::io_uring_prep_write_fixed(&entry, fd, memory, transfer.bytes, transfer.offset, buffer);
      }
    } else if (transfer.kind == IoKind::kRead) {
      ::io_uring_prep_read(&entry, fd, memory, transfer.bytes, transfer.offset);
    } else {
      ::io_uring_prep_write(&entry, fd, memory, transfer.bytes, transfer.offset);
    }
    if (is_fixed_file) entry.flags |= IOSQE_FIXED_FILE;
    ::io_uring_sqe_set_data64(&entry, transfer.tag);
  }

  std::size_t take_answers(std::span<RawCompletion> out) {
    std::array<io_uring_cqe*, 64> entries{};
    std::size_t count = 0;
    while (count < out.size()) {
      const auto room = static_cast<unsigned>(std::min(out.size() - count, entries.size()));
      const unsigned found = ::io_uring_peek_batch_cqe(&ring_, entries.data(), room);
      for (unsigned i = 0; i < found; ++i) {
        out[count + i] = {.tag = ::io_uring_cqe_get_data64(entries[i]), .result = entries[i]->res};
      }
      ::io_uring_cq_advance(&ring_, found);
      count += found;
      if (found == 0) break;
    }
    return count;
  }

  void wait(IoTime deadline) {
    io_uring_cqe* entry = nullptr;
    if (deadline == kForever) return check(::io_uring_wait_cqe(&ring_, &entry));
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::max(deadline - std::chrono::steady_clock::now(), IoTime::duration::zero()));
    __kernel_timespec time{.tv_sec = left.count() / 1'000'000'000, .tv_nsec = left.count() % 1'000'000'000};
    check(::io_uring_wait_cqes(&ring_, &entry, 1, &time, nullptr));
  }

  static void check(int result) {
    if (result < 0 && !comes_again(-result)) throw IoError("cannot enter", "io_uring", -result);
  }

  int update_buffer(std::uint32_t slot, const iovec& range) noexcept {
    const __u64 tag = 0;
    return ::io_uring_register_buffers_update_tag(&ring_, slot, &range, &tag, 1);
  }

  io_uring ring_;
  bool has_poller_;
  bool has_files_ = false;
  bool has_buffers_ = false;
  bool has_warned_ = false;
};

}  // namespace

std::unique_ptr<IoEngine> try_make_uring_engine(const IoOptions& options, int& error_number) {
  io_uring_params params{};
  if (options.sq_polling) {
    params.flags |= IORING_SETUP_SQPOLL;
    params.sq_thread_idle = kPollerIdleMs;
  }
  io_uring ring{};
  error_number = -::io_uring_queue_init_params(options.limits.depth, &ring, &params);
  if (error_number != 0) return nullptr;
  try {
    return std::make_unique<UringEngine>(options, ring);
  } catch (...) {
    ::io_uring_queue_exit(&ring);
    throw;
  }
}

}  // namespace metrale::io
