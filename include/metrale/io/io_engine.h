// SPDX-License-Identifier: Apache-2.0
// IoEngine: what carries single transfers to the system and brings back its raw answers. Nothing is retried,
// continued or believed here; IoQueue does that once for all engines. Posix, io_uring and cuFile are engines;
// FaultEngine stands in front of one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace metrale::io {

enum class IoKind : std::uint8_t { kRead, kWrite };
enum class MemoryKind : std::uint8_t { kHost, kDevice };

using IoTime = std::chrono::steady_clock::time_point;
inline constexpr IoTime kNoWait = IoTime::min();
inline constexpr IoTime kForever = IoTime::max();

inline constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};
// Codes above are those of the engine's own library.
inline constexpr std::int64_t kMaxErrno = 4095;

struct IoCapabilities {
  bool registered_buffers = false;  // memory is pinned once instead of at each transfer
  bool registered_files = false;
  bool device_memory = false;  // transfers to and from a DevicePtr
  std::uint32_t max_depth = 0;
};

// One attempt.
struct RawTransfer {
  std::uint64_t tag = 0;  // comes back with the answer
  IoKind kind = IoKind::kRead;
  MemoryKind memory = MemoryKind::kHost;
  int fd = -1;
  std::uint32_t file_slot = kNoSlot;    // kNoSlot: not registered with the engine
  std::uint32_t buffer_slot = kNoSlot;  // likewise
  std::uint64_t offset = 0;
  std::uint64_t address = 0;
  std::uint32_t bytes = 0;
  std::uint32_t granule_bytes = 1;  // offset and bytes are multiples of it on a direct file
};

// `result`: bytes, 0 at the end of the file, -errno, or a negative code below -kMaxErrno.
struct RawCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

struct EngineLimits {
  std::uint32_t depth = 64;        // transfers in the engine at a time
  std::uint32_t max_files = 64;    // registered at a time
  std::uint32_t max_buffers = 64;  // likewise
};

// One thread at a time, as IoQueue. No call but reap with a deadline waits, and none allocates per transfer.
class IoEngine {
 public:
  explicit IoEngine(const EngineLimits& limits) : limits_(limits) {}
  // Nothing is in the engine any more.
  virtual ~IoEngine() = default;
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  // "posix", "io_uring", "cufile"; stable for the engine's life.
  [[nodiscard]] std::string_view name() const { return do_name(); }
  [[nodiscard]] IoCapabilities capabilities() const { return do_capabilities(); }
  [[nodiscard]] const EngineLimits& limits() const { return limits_; }

  // False where the engine goes without: transfers then name kNoSlot. `slot` is free and below the limit
  // (InvalidArgument).
  [[nodiscard]] bool register_buffer(std::uint32_t slot, MemoryKind memory, std::uint64_t address,
                                     std::uint64_t bytes);
  void unregister_buffer(std::uint32_t slot) noexcept { do_unregister_buffer(slot); }
  // As for buffers. Throws IoError where the engine can do nothing with this file.
  [[nodiscard]] bool register_file(std::uint32_t slot, int fd, const std::string& path);
  void unregister_file(std::uint32_t slot) noexcept { do_unregister_file(slot); }

  // How many of them, from the first, the engine took; the others are offered again. Memory and file of a
  // transfer stay until its answer is there.
  [[nodiscard]] std::size_t submit(std::span<const RawTransfer> transfers) {
    return transfers.empty() ? 0 : do_submit(transfers);
  }
  // Answers, in any order. Waits for the first until `deadline`, and may come back early with none. Throws
  // IoError where the engine itself fails.
  [[nodiscard]] std::size_t reap(std::span<RawCompletion> out, IoTime deadline) {
    return out.empty() ? 0 : do_reap(out, deadline);
  }

 private:
  [[nodiscard]] virtual std::string_view do_name() const = 0;
  [[nodiscard]] virtual IoCapabilities do_capabilities() const = 0;
  [[nodiscard]] virtual bool do_register_buffer(std::uint32_t, MemoryKind, std::uint64_t, std::uint64_t) {
    return false;
  }
  virtual void do_unregister_buffer(std::uint32_t) noexcept {}
  [[nodiscard]] virtual bool do_register_file(std::uint32_t, int, const std::string&) { return false; }
  virtual void do_unregister_file(std::uint32_t) noexcept {}
  [[nodiscard]] virtual std::size_t do_submit(std::span<const RawTransfer> transfers) = 0;
  [[nodiscard]] virtual std::size_t do_reap(std::span<RawCompletion> out, IoTime deadline) = 0;

  EngineLimits limits_;
};

}  // namespace metrale::io
