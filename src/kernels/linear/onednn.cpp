// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/onednn.h"

#include <array>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>
#endif

#include <metrale/base/error.h>
#include <metrale/base/log.h>

namespace metrale::kernels::linear {

using quant::ElementType;

#if defined(DNNL_VERSION_MAJOR) && DNNL_VERSION_MAJOR == 2

namespace {

// The functions of the library, or nullopt where it is absent or lacks one.
struct Library {
  decltype(&dnnl_engine_create) engine_create;
  decltype(&dnnl_engine_destroy) engine_destroy;
  decltype(&dnnl_stream_create) stream_create;
  decltype(&dnnl_stream_destroy) stream_destroy;
  decltype(&dnnl_memory_desc_init_by_strides) memory_desc_init;
  decltype(&dnnl_matmul_desc_init) matmul_desc_init;
  decltype(&dnnl_primitive_desc_create) primitive_desc_create;
  decltype(&dnnl_primitive_desc_destroy) primitive_desc_destroy;
  decltype(&dnnl_primitive_create) primitive_create;
  decltype(&dnnl_primitive_destroy) primitive_destroy;
  decltype(&dnnl_primitive_execute) primitive_execute;
  decltype(&dnnl_memory_create) memory_create;
  decltype(&dnnl_memory_destroy) memory_destroy;
  decltype(&dnnl_memory_set_data_handle) memory_set_data_handle;
  decltype(&dnnl_stream_wait) stream_wait;
  void (*set_threads)(int);  // of the OpenMP it threads with; null where it has another way
};

template <class Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  return function != nullptr;
}

std::optional<Library> open_library() {
  // Never closed: threads keep objects of it.
  void* handle = ::dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    log().warn("fast products are computed like exact ones: oneDNN is not installed ({})", ::dlerror());
    return std::nullopt;
  }
  Library l{};
  const bool complete = find(handle, "dnnl_engine_create", l.engine_create) &&
                        find(handle, "dnnl_engine_destroy", l.engine_destroy) &&
                        find(handle, "dnnl_stream_destroy", l.stream_destroy) &&
                        find(handle, "dnnl_stream_create", l.stream_create) &&
                        find(handle, "dnnl_memory_desc_init_by_strides", l.memory_desc_init) &&
                        find(handle, "dnnl_matmul_desc_init", l.matmul_desc_init) &&
                        find(handle, "dnnl_primitive_desc_create", l.primitive_desc_create) &&
                        find(handle, "dnnl_primitive_desc_destroy", l.primitive_desc_destroy) &&
                        find(handle, "dnnl_primitive_create", l.primitive_create) &&
                        find(handle, "dnnl_primitive_destroy", l.primitive_destroy) &&
                        find(handle, "dnnl_primitive_execute", l.primitive_execute) &&
                        find(handle, "dnnl_memory_create", l.memory_create) &&
                        find(handle, "dnnl_memory_destroy", l.memory_destroy) &&
                        find(handle, "dnnl_memory_set_data_handle", l.memory_set_data_handle) &&
                        find(handle, "dnnl_stream_wait", l.stream_wait);
  if (!complete) {
    log().warn(
        "fast products are computed like exact ones: libdnnl.so.2 is not the oneDNN 2 that was expected");
    return std::nullopt;
  }
  static_cast<void>(find(handle, "omp_set_num_threads", l.set_threads));
  return l;
}

// Null where it is absent.
const Library* library() {
  static const std::optional<Library> found = open_library();
  return found ? &*found : nullptr;
}

void check(dnnl_status_t status, const char* call) {
  if (status != dnnl_success) throw DeviceError(call, static_cast<int>(status), "oneDNN failed");
}

dnnl_data_type_t data_type(ElementType type) {
  return type == ElementType::kBf16 ? dnnl_bf16 : dnnl_f32;
}

template <class Object>
using Owner = std::unique_ptr<Object, dnnl_status_t (*)(Object*)>;

// Calls a function that makes an object, which `destroy` ends.
template <class Object, class Make>
Owner<Object> make(const char* call, dnnl_status_t (*destroy)(Object*), const Make& make_object) {
  Object* object = nullptr;
  check(make_object(&object), call);
  return {object, destroy};
}

// One product of fixed shape, bound to new addresses for each use.
class Primitive {
 public:
  Primitive(const Library& l, dnnl_engine_t engine, const Product& p)
      : library_(&l), primitive_(nullptr, l.primitive_destroy) {
    std::array<dnnl_memory_desc_t, 4> descs{};
    const auto describe = [&](std::size_t i, std::array<std::int64_t, 2> dims, ElementType type,
                              std::array<std::int64_t, 2> strides) {
      dnnl_dims_t d{dims[0], dims[1]};
      dnnl_dims_t s{strides[0], strides[1]};
      check(l.memory_desc_init(&descs[i], 2, d, data_type(type), s), "dnnl_memory_desc_init_by_strides");
    };
    describe(0, {p.rows, p.ins}, p.type, {p.in_stride, 1});
    describe(1, {p.ins, p.outs}, p.type, {1, p.ins});
    describe(2, {p.rows, p.outs}, p.out_type, {p.out_stride, 1});
    describe(3, {1, p.outs}, p.type, {p.outs, 1});
    dnnl_matmul_desc_t matmul{};
    check(
        l.matmul_desc_init(&matmul, &descs[0], &descs[1], p.bias == nullptr ? nullptr : &descs[3], &descs[2]),
        "dnnl_matmul_desc_init");
    const auto desc = make("dnnl_primitive_desc_create", l.primitive_desc_destroy, [&](auto** made) {
      return l.primitive_desc_create(made, &matmul, nullptr, engine, nullptr);
    });
    primitive_ = make("dnnl_primitive_create", l.primitive_destroy,
                      [&](auto** made) { return l.primitive_create(made, desc.get()); });
    for (std::size_t i = 0; i < (p.bias == nullptr ? 3U : 4U); ++i) {
      memories_.push_back(make("dnnl_memory_create", l.memory_destroy, [&](auto** made) {
        return l.memory_create(made, &descs[i], engine, DNNL_MEMORY_NONE);
      }));
    }
  }

  void run(dnnl_stream_t stream, const Product& p) {
    constexpr std::array kArgs{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    const std::array<const void*, 4> addresses{p.in, p.weight, p.out, p.bias};
    std::array<dnnl_exec_arg_t, 4> args{};
    for (std::size_t i = 0; i < memories_.size(); ++i) {
      check(library_->memory_set_data_handle(memories_[i].get(), const_cast<void*>(addresses[i])),
            "dnnl_memory_set_data_handle");
      args[i] = {.arg = kArgs[i], .memory = memories_[i].get()};
    }
    check(library_->primitive_execute(primitive_.get(), stream, static_cast<int>(memories_.size()),
                                      args.data()),
          "dnnl_primitive_execute");
    check(library_->stream_wait(stream), "dnnl_stream_wait");
  }

 private:
  const Library* library_;
  Owner<dnnl_primitive> primitive_;
  std::vector<Owner<dnnl_memory>> memories_;  // source, weights, destination, perhaps bias
};

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, ElementType,
                       ElementType, bool>;

// What one thread keeps: making a primitive costs as much as a small product.
class ThreadState {
 public:
  explicit ThreadState(const Library& l)
      : library_(&l),
        engine_(make("dnnl_engine_create", l.engine_destroy,
                     [&](auto** made) { return l.engine_create(made, dnnl_cpu, 0); })),
        stream_(make("dnnl_stream_create", l.stream_destroy, [&](auto** made) {
          return l.stream_create(made, engine_.get(), dnnl_stream_default_flags);
        })) {
    if (l.set_threads != nullptr) l.set_threads(1);  // of this thread's calls: our pool has the others
  }

  void multiply(const Product& p) {
    if (primitives_.size() >= kMostPrimitives) primitives_.clear();
    const Key key{p.rows, p.ins, p.outs, p.in_stride, p.out_stride, p.type, p.out_type, p.bias != nullptr};
    primitives_.try_emplace(key, *library_, engine_.get(), p).first->second.run(stream_.get(), p);
  }

 private:
  static constexpr std::size_t kMostPrimitives = 256;
  const Library* library_;
  Owner<dnnl_engine> engine_;
  Owner<dnnl_stream> stream_;
  std::map<Key, Primitive> primitives_;
};

// Whether this processor has the product: oneDNN multiplies BF16 from AVX-512 on.
bool works(const Library& l, ElementType type, ElementType out) {
  constexpr std::int64_t kSize = 16;
  const std::vector<std::byte> zeros(kSize * kSize * sizeof(float));
  std::vector<std::byte> result(zeros.size());
  try {
    ThreadState(l).multiply({.rows = kSize,
                             .ins = kSize,
                             .outs = kSize,
                             .in_stride = kSize,
                             .out_stride = kSize,
                             .type = type,
                             .out_type = out,
                             .in = zeros.data(),
                             .weight = zeros.data(),
                             .bias = nullptr,
                             .out = result.data()});
    return true;
  } catch (const DeviceError& error) {
    log().warn("fast products of {} are computed like exact ones: {}", to_string(type), error.what());
    return false;
  }
}

}  // namespace

bool onednn_has(ElementType in, ElementType weight, ElementType out) {
  const Library* const l = library();
  if (l == nullptr || in != weight || (out != in && out != ElementType::kF32)) return false;
  if (in == ElementType::kF32) {
    static const bool f32 = works(*l, in, out);
    return f32;
  }
  if (in != ElementType::kBf16) return false;
  static const bool bf16 = works(*l, in, ElementType::kBf16);
  return bf16;
}

void onednn_multiply(const Product& product) {
  thread_local ThreadState state(*library());
  state.multiply(product);
}

#else

bool onednn_has(ElementType, ElementType, ElementType) {
  return false;
}

void onednn_multiply(const Product&) {
  throw Unsupported("this build", "products by oneDNN 2 (it was built without its headers)");
}

#endif

}  // namespace metrale::kernels::linear
