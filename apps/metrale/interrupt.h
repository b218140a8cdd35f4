// SPDX-License-Identifier: Apache-2.0
// Ctrl-C (SIGINT) and SIGTERM as a flag that loops look at. A second signal ends the process at
// once and removes the file that was being written.
#pragma once

namespace metrale::app {

void watch_interrupts();
[[nodiscard]] bool interrupted();
// The file to remove then; null: none. The string outlives its registration.
void remove_on_second_interrupt(const char* path);

}  // namespace metrale::app
