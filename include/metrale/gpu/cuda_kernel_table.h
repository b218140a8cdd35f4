// SPDX-License-Identifier: Apache-2.0
// CudaKernelTable: the CUDA bodies of kernels. Filled explicitly at the composition root and injected into
// the CUDA backend, like CpuKernelTable.
//
// A body is a device symbol of an embedded module (one launch of the function that the KernelId names, with
// the shape that launch_shape() gives), or a host body: an object that enqueues what it likes on the stream
// it is given, also while that stream is capturing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <metrale/gpu/kernel_id.h>

namespace metrale::gpu {

// A kernel family's fat binaries, which outlive the table. Empty: there is none for that path.
struct CudaModuleImages {
  std::span<const std::byte> portable;  // compute_80 PTX and SASS
  std::span<const std::byte> sm90a;
};

// A device function that a context resolved; valid while its backend lives.
struct CudaFunction {
  void* function = nullptr;
};

struct CudaDeviceFacts {
  int ordinal = 0;
  int compute_major = 0;
  int compute_minor = 0;
  std::uint32_t sm_count = 0;
  std::uint32_t max_shared_bytes = 0;  // dynamic shared memory that one block may ask for
};

// What a host body may ask of its backend when it is made. The device's context is current.
class CudaKernelContext {
 public:
  CudaKernelContext() = default;
  virtual ~CudaKernelContext() = default;
  CudaKernelContext(const CudaKernelContext&) = delete;
  CudaKernelContext& operator=(const CudaKernelContext&) = delete;
  // A function of an embedded module. Throws InvalidArgument naming module::symbol where there is none.
  // `shared_bytes`: the most dynamic shared memory that a launch of it will ask for.
  [[nodiscard]] virtual CudaFunction function(std::string_view module, std::string_view symbol,
                                              std::uint32_t shared_bytes = 0) = 0;
  [[nodiscard]] virtual const CudaDeviceFacts& device() const = 0;
};

// One launch of a host body. The device's context is current.
class CudaLaunch {
 public:
  CudaLaunch() = default;
  virtual ~CudaLaunch() = default;
  CudaLaunch(const CudaLaunch&) = delete;
  CudaLaunch& operator=(const CudaLaunch&) = delete;
  // Enqueues; `args` is the kernel's one argument struct. Throws DeviceError.
  virtual void kernel(CudaFunction function, const LaunchShape& shape, std::span<const std::byte> args) = 0;
  template <class Args>
  void kernel(CudaFunction function, const LaunchShape& shape, const Args& args) {
    kernel(function, shape, std::as_bytes(std::span(&args, 1)));
  }
  // The driver's stream, for libraries that take one.
  [[nodiscard]] virtual void* stream() const = 0;
};

// A host body with what it keeps for one backend. launch() may be called from several threads at once. It is
// destroyed with the device's context current.
class CudaHostBody {
 public:
  CudaHostBody() = default;
  virtual ~CudaHostBody() = default;
  CudaHostBody(const CudaHostBody&) = delete;
  CudaHostBody& operator=(const CudaHostBody&) = delete;
  virtual void launch(CudaLaunch& to, std::span<const std::byte> args) = 0;
  // The context is lost, and what the body made in it is gone. Destruction is next and calls neither driver
  // nor libraries.
  virtual void abandon() noexcept {}
};
using CudaHostBodyFactory = std::function<std::unique_ptr<CudaHostBody>(CudaKernelContext&)>;

class CudaKernelTable {
 public:
  struct Entry {
    std::size_t args_bytes = 0;
    CudaHostBodyFactory make_body;  // empty: the device symbol
  };
  using Name = std::pair<std::string, std::string>;

  // Throws InvalidArgument for a name that is taken.
  void add_module(std::string_view name, const CudaModuleImages& images);
  // The device symbol `id.function` of module `id.module`.
  template <class Args>
  void add(const KernelId<Args>& id) {
    insert(id.module, id.function, {sizeof(Args), {}});
  }
  // `make(context)` returns a unique_ptr to an object with `void launch(CudaLaunch&, const Args&)`, and
  // `void abandon() noexcept` where it keeps something of the device.
  template <class Args, class Make>
  void add_host(const KernelId<Args>& id, Make make) {
    using Body = decltype(make(std::declval<CudaKernelContext&>()));
    struct Adapter final : CudaHostBody {
      explicit Adapter(Body made) : body(std::move(made)) {}
      void launch(CudaLaunch& to, std::span<const std::byte> args) override {
        body->launch(to, *reinterpret_cast<const Args*>(args.data()));
      }
      void abandon() noexcept override {
        if constexpr (requires { body->abandon(); }) body->abandon();
      }
      Body body;
    };
    insert(id.module, id.function, {sizeof(Args), [make](CudaKernelContext& context) {
                                      return std::make_unique<Adapter>(make(context));
                                    }});
  }

  [[nodiscard]] const std::map<std::string, CudaModuleImages, std::less<>>& modules() const {
    return modules_;
  }
  [[nodiscard]] const std::map<Name, Entry>& entries() const { return entries_; }

 private:
  void insert(std::string_view module, std::string_view function, Entry entry);

  std::map<std::string, CudaModuleImages, std::less<>> modules_;
  std::map<Name, Entry> entries_;
};

}  // namespace metrale::gpu
