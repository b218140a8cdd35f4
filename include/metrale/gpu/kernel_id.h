// SPDX-License-Identifier: Apache-2.0
// One kernel = one name, one argument struct, a body per backend. KernelId carries the name and the type.
//
// An argument struct is trivially copyable, holds integers and floats only (addresses as std::uint64_t), has
// no padding, and has a free function `LaunchShape launch_shape(const Args&)` beside it.
#pragma once

#include <string_view>
#include <type_traits>

#include <metrale/gpu/launch_shape.h>

namespace metrale::gpu {

template <class Args>
struct KernelId {
  static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= 8);
  std::string_view module;    // the kernel family
  std::string_view function;  // the device symbol
};

}  // namespace metrale::gpu
