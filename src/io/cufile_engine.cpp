// SPDX-License-Identifier: Apache-2.0
// cuFile: threads that call cuFileRead and cuFileWrite, to and from device memory and host memory.
#include <bit>
#include <cerrno>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>

#include "io/cufile_library.h"
#include "io/engines.h"
#include "io/transfer_workers.h"

namespace metrale::io {
namespace {

class CufileEngine final : public IoEngine {
 public:
  explicit CufileEngine(const IoOptions& options)
      : IoEngine(options.limits),
        library_(cufile::load(options.cufile_libraries, options.cuda_library)),
        handles_(options.limits.max_files),
        bases_(options.limits.max_buffers),
        workers_(options.threads, options.limits.depth, options.on_thread_start,
                 [this](const RawTransfer& transfer) { return transfer_by_call(transfer); }) {}

 private:
  std::string_view do_name() const override { return "cufile"; }
  IoCapabilities do_capabilities() const override {
    return {.registered_buffers = true,
            .registered_files = true,
            .device_memory = true,
            .max_depth = limits().depth};
  }

  bool do_register_buffer(std::uint32_t slot, MemoryKind, std::uint64_t address,
                          std::uint64_t bytes) override {
    const cufile::Status status = library_.buffer_register(std::bit_cast<void*>(address), bytes, 0);
    if (status.code == 0) {
      bases_[slot] = address;
      return true;
    }
    if (!has_warned_) {
      log().warn("io: cuFile does not register a buffer of {} bytes (code {}); it uses its own in between",
                 bytes, status.code);
      has_warned_ = true;
    }
    return false;
  }
  void do_unregister_buffer(std::uint32_t slot) noexcept override {
    static_cast<void>(library_.buffer_deregister(std::bit_cast<void*>(bases_[slot])));
    bases_[slot] = 0;
  }
  bool do_register_file(std::uint32_t slot, int fd, const std::string& path) override {
    cufile::Descriptor descriptor{.type = cufile::kHandleTypeDescriptor, .fd = fd, .file_system = nullptr};
    const cufile::Status status = library_.handle_register(&handles_[slot], &descriptor);
    if (status.code == 0) return true;
    throw IoError("cannot register", path, EINVAL, 0,
                  fmt::format("cuFile code {}{}", status.code,
                              status.code == cufile::kHandleNotRegistered
                                  ? "; it asks udev about the disk: is /run/udev there?"
                                  : ""));
  }
  void do_unregister_file(std::uint32_t slot) noexcept override {
    library_.handle_deregister(handles_[slot]);
    handles_[slot] = nullptr;
  }

  std::size_t do_submit(std::span<const RawTransfer> transfers) override {
    return workers_.submit(transfers);
  }
  std::size_t do_reap(std::span<RawCompletion> out, IoTime deadline) override {
    return workers_.reap(out, deadline);
  }

  // A registered buffer is named by its base, or cuFile takes the address for memory that it does not know.
  std::int64_t transfer_by_call(const RawTransfer& transfer) const {
    const std::uint64_t base =
        transfer.buffer_slot == kNoSlot ? transfer.address : bases_[transfer.buffer_slot];
    void* const memory = std::bit_cast<void*>(base);
    const auto within = static_cast<off_t>(transfer.address - base);
    const auto offset = static_cast<off_t>(transfer.offset);
    const cufile::Handle handle = handles_[transfer.file_slot];
    errno = 0;
    const ssize_t result = transfer.kind == IoKind::kRead
                               ? library_.read(handle, memory, transfer.bytes, offset, within)
                               : library_.write(handle, memory, transfer.bytes, offset, within);
    if (result != -1) return result;
    return errno != 0 ? -errno : -EIO;
  }

  cufile::Library library_;
  std::vector<cufile::Handle> handles_;
  std::vector<std::uint64_t> bases_;
  bool has_warned_ = false;
  TransferWorkers workers_;  // last: its threads use the others
};

}  // namespace

std::unique_ptr<IoEngine> make_cufile_engine(const IoOptions& options) {
  return std::make_unique<CufileEngine>(options);
}

}  // namespace metrale::io
