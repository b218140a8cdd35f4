// SPDX-License-Identifier: Apache-2.0
// Which checks this build makes.
#pragma once

namespace metrale::backends::cpu {

#ifdef METRALE_CHECKS
inline constexpr bool kChecks = true;
#else
inline constexpr bool kChecks = false;
#endif

// AddressSanitizer finds the use of freed memory by itself, and better.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace metrale::backends::cpu
