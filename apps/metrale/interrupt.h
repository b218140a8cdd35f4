// SPDX-License-Identifier: Apache-2.0
// Ctrl-C (SIGINT) and SIGTERM as a flag that loops look at. A second signal ends the process at
// once and removes the files that were being written.
#pragma once

namespace metrale::app {

void watch_interrupts();
[[nodiscard]] bool interrupted();
// A file to remove then, until it is complete. The string lives until then; a few files at a time.
void remove_on_second_interrupt(const char* path);
void keep_on_second_interrupt(const char* path);

}  // namespace metrale::app
