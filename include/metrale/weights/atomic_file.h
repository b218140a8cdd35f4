// SPDX-License-Identifier: Apache-2.0
// AtomicFile: a file that appears under its name whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <metrale/base/fd.h>

namespace metrale::weights {

// Writes beside `path` and takes its place at commit(); destroyed before that, it leaves nothing behind.
class AtomicFile {
 public:
  // Throws IoError. `mode` as open() takes it: the umask has its say.
  explicit AtomicFile(const std::string& path, std::uint32_t mode = 0666);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends. Retries EINTR, continues short writes. Throws IoError naming the byte.
  void write(std::span<const std::byte> bytes);
  // Mode and, where the system allows, owner and group of the open file `fd`, which this one replaces.
  // Without its group the new file's group may do no more than everybody. Throws IoError.
  void take_access_of(int fd);
  // Syncs the file, renames it and syncs the directory. Throws IoError.
  void commit();

 private:
  std::string path_;
  std::string part_path_;  // empty once renamed
  UniqueFd fd_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace metrale::weights
