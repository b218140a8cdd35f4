// SPDX-License-Identifier: Apache-2.0
// What direct I/O on an open file must be aligned to.
#pragma once

#include <optional>
#include <string>

#include <metrale/io/file.h>

namespace metrale::io {

// nullopt: the file system says that it has no direct I/O, or nobody says what it asks for. `block_devices`:
// the folder with an entry MAJOR:MINOR for each block device.
[[nodiscard]] std::optional<DirectAlignment> find_direct_alignment(
    int fd, const std::string& block_devices = "/sys/dev/block");

// From the folder alone: the logical block size of the device, or of the disk that the partition `device` is
// of.
[[nodiscard]] std::optional<DirectAlignment> block_device_alignment(const std::string& block_devices,
                                                                    const std::string& device);

}  // namespace metrale::io
