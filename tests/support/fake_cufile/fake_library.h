// SPDX-License-Identifier: Apache-2.0
// Where the fake cuFile is, and its knobs.
#pragma once

#include <string>

#include "support/fake_cufile/knobs.h"

namespace metrale::test {

[[nodiscard]] std::string fake_cufile_path();
// Of the one library that is loaded in this process.
[[nodiscard]] CufileKnobs& fake_cufile_knobs();

}  // namespace metrale::test
