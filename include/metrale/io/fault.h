// SPDX-License-Identifier: Apache-2.0
// Decorators that fail where a test asks: FaultEngine below an IoQueue, so that the queue's own handling of
// short, failed, stale, duplicate and reordered answers is what is tested, and FaultFileCalls below a File.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include <metrale/base/ring_queue.h>
#include <metrale/io/file_calls.h>
#include <metrale/io/io_engine.h>

namespace metrale::io {

enum class IoFault : std::uint8_t {
  kShort,      // a part is transferred
  kError,      // an errno, nothing is transferred
  kStale,      // an answer for something that ended long ago comes first
  kDuplicate,  // the answer comes twice, the second time perhaps later
  kLate,       // the answer comes after others
  kRefused,    // the engine does not take the transfer yet
};
inline constexpr std::size_t kIoFaults = 6;

// How many of a thousand transfers have each fault.
struct IoFaultRates {
  std::uint64_t seed = 0;
  unsigned shortened = 0;
  unsigned interrupted = 0;  // EINTR
  unsigned again = 0;        // EAGAIN
  unsigned failed = 0;       // EIO, ENOSPC (writes), EINVAL
  unsigned stale = 0;
  unsigned duplicate = 0;
  unsigned late = 0;
  unsigned refused = 0;
};

// Name, capabilities and limits are those of the engine behind it.
class FaultEngine final : public IoEngine {
 public:
  explicit FaultEngine(std::unique_ptr<IoEngine> inner, const IoFaultRates& rates = {});

  // The `nth` transfer from now (1 = the next) has this fault. `detail`: the errno of kError, the bytes of
  // kShort.
  void inject(IoFault fault, std::uint64_t nth, std::uint32_t detail = 0);
  [[nodiscard]] std::uint64_t injected(IoFault fault) const {
    return injected_[static_cast<std::size_t>(fault)];
  }
  // Transfers offered so far.
  [[nodiscard]] std::uint64_t transfers() const { return transfers_; }

 private:
  struct Order {
    std::uint64_t transfer = 0;
    IoFault fault = IoFault::kError;
    std::uint32_t detail = 0;
  };
  // A transfer in the inner engine whose answer will be changed.
  struct Mark {
    RawTransfer transfer;
    IoFault fault = IoFault::kError;
  };

  [[nodiscard]] std::string_view do_name() const override { return inner_->name(); }
  [[nodiscard]] IoCapabilities do_capabilities() const override { return inner_->capabilities(); }
  [[nodiscard]] bool do_register_buffer(std::uint32_t slot, MemoryKind memory, std::uint64_t address,
                                        std::uint64_t bytes) override;
  void do_unregister_buffer(std::uint32_t slot) noexcept override { inner_->unregister_buffer(slot); }
  [[nodiscard]] bool do_register_file(std::uint32_t slot, int fd, const std::string& path) override;
  void do_unregister_file(std::uint32_t slot) noexcept override { inner_->unregister_file(slot); }
  [[nodiscard]] std::size_t do_submit(std::span<const RawTransfer> transfers) override;
  [[nodiscard]] std::size_t do_reap(std::span<RawCompletion> out, IoTime deadline) override;

  [[nodiscard]] bool draws(unsigned thousandths);
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  // What the next transfer suffers; the order is taken from the script.
  [[nodiscard]] bool next_fault(const RawTransfer& transfer, Order& order);
  [[nodiscard]] bool random_fault(const RawTransfer& transfer, Order& order);
  [[nodiscard]] bool submit_one(const RawTransfer& transfer);
  [[nodiscard]] bool submit_short(RawTransfer transfer, std::uint32_t bytes);
  void take(const RawCompletion& answer);
  void take_marked(const Mark& mark, RawCompletion answer);
  void count(IoFault fault) { ++injected_[static_cast<std::size_t>(fault)]; }

  std::unique_ptr<IoEngine> inner_;
  IoFaultRates rates_;
  std::mt19937_64 random_;
  std::uint64_t transfers_ = 0;
  std::array<std::uint64_t, kIoFaults> injected_{};
  std::vector<Order> script_;
  std::vector<Mark> marks_;
  std::size_t in_inner_ = 0;
  std::uint64_t old_tag_ = 0;
  RingQueue<RawCompletion> answers_;
  RingQueue<RawCompletion> late_;
  std::vector<RawCompletion> incoming_;
};

enum class FileFault : std::uint8_t { kOpen, kOpenDirect, kRead, kWrite };
inline constexpr std::size_t kFileFaults = 4;

// Thread-safe. `inner` outlives it.
class FaultFileCalls final : public FileCalls {
 public:
  explicit FaultFileCalls(FileCalls& inner = system_file_calls()) : inner_(inner) {}

  // From the `nth` call of its kind from now (1 = the next) on, `times` calls answer with this errno.
  void fail(FileFault point, std::uint64_t nth, int error_number, std::uint64_t times = 1);
  // No read or write transfers more; 0: as much as it is asked for.
  void limit_transfers(std::size_t bytes);
  [[nodiscard]] std::uint64_t calls(FileFault point) const;

 private:
  struct State {
    std::uint64_t calls = 0;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    int error_number = 0;
  };
  [[nodiscard]] int do_open(const std::string& path, int flags) override;
  [[nodiscard]] std::int64_t do_read(int fd, std::span<std::byte> out, std::uint64_t offset) override;
  [[nodiscard]] std::int64_t do_write(int fd, std::span<const std::byte> from, std::uint64_t offset) override;
  // Counts a call; its errno value, or 0.
  [[nodiscard]] int due(FileFault point);
  [[nodiscard]] std::size_t limited(std::size_t bytes) const;

  FileCalls& inner_;
  mutable std::mutex mutex_;
  std::array<State, kFileFaults> states_;
  std::size_t limit_bytes_ = 0;
};

}  // namespace metrale::io
