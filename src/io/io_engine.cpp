// SPDX-License-Identifier: Apache-2.0
#include <metrale/base/error.h>
#include <metrale/io/io_engine.h>

namespace metrale::io {

bool IoEngine::register_buffer(std::uint32_t slot, MemoryKind memory, std::uint64_t address,
                               std::uint64_t bytes) {
  expects(slot < limits_.max_buffers, "there is no such slot for a buffer");
  return do_register_buffer(slot, memory, address, bytes);
}

bool IoEngine::register_file(std::uint32_t slot, int fd, const std::string& path) {
  expects(slot < limits_.max_files, "there is no such slot for a file");
  return do_register_file(slot, fd, path);
}

}  // namespace metrale::io
