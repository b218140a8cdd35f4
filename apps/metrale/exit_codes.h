// SPDX-License-Identifier: Apache-2.0
// The program's exit codes (docs/cli.md) and which error ends with which.
#pragma once

#include <exception>

namespace metrale::app {

enum ExitCode : int {
  kOk = 0,
  kInternalError = 1,
  kUsage = 2,      // a bad flag or value, a prompt that does not fit
  kBadFormat = 3,  // a model or input file that is not what its format says
  kIoFailed = 4,   // a file that cannot be read or written
  kOutOfMemory = 5,
  kUnsupported = 6,  // a valid model or setting that this build does not have
  kDeviceFailed = 7,
  kInterrupted = 130,  // Ctrl-C
};

// Prints one line on standard error and returns the code.
[[nodiscard]] int report_error(const std::exception& error);

// From now on memory that is short where no error may leave (a destructor) ends the program with the same
// line and code.
void report_on_terminate();

}  // namespace metrale::app
