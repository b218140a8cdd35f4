// SPDX-License-Identifier: Apache-2.0
// Ctrl-C (SIGINT) and SIGTERM as a flag that loops look at. A second signal ends the process at once.
#pragma once

namespace metrale::app {

void watch_interrupts();
[[nodiscard]] bool interrupted();

}  // namespace metrale::app
