// SPDX-License-Identifier: Apache-2.0
// The engines, one file each; make_queue.cpp chooses among them.
#pragma once

#include <memory>

#include <metrale/io/make_queue.h>

namespace metrale::io {

[[nodiscard]] std::unique_ptr<IoEngine> make_posix_engine(const IoOptions& options);
// Null with an errno value in `error_number` where the system refuses rings.
[[nodiscard]] std::unique_ptr<IoEngine> try_make_uring_engine(const IoOptions& options, int& error_number);
// Throws Unsupported, saying why, where there is no cuFile.
[[nodiscard]] std::unique_ptr<IoEngine> make_cufile_engine(const IoOptions& options);

}  // namespace metrale::io
