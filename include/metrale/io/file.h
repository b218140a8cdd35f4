// SPDX-License-Identifier: Apache-2.0
// File: the owner of an open regular file, read and written at offsets, through the page cache or past it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <metrale/base/fd.h>
#include <metrale/io/file_calls.h>

namespace metrale::io {

enum class OpenMode : std::uint8_t {
  kRead,
  kReadWrite,  // the file is there
  kCreate,     // read and write; made where it is not there, emptied where it is
};

// What direct I/O asks of addresses and of offsets and lengths; powers of two.
struct DirectAlignment {
  std::uint32_t memory_bytes = 512;
  std::uint32_t offset_bytes = 512;
  friend bool operator==(const DirectAlignment&, const DirectAlignment&) = default;
};

struct FileRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Move-only. Reads and writes are blocking and may come from several threads; a moved-from File is only
// destroyed or assigned to. Calls throw IoError with path and offset where the system fails.
class File {
 public:
  // Through the page cache. `calls` outlives the File. Throws IoError; InvalidArgument where `path` is not a
  // regular file.
  [[nodiscard]] static File open(const std::string& path, OpenMode mode,
                                 FileCalls& calls = system_file_calls());
  // Past the page cache (O_DIRECT). nullopt where this file cannot: the file system refuses or ignores the
  // flag, or nobody says what it must be aligned to. The caller then opens it the other way. Throws as open
  // does for all else.
  [[nodiscard]] static std::optional<File> try_open_direct(const std::string& path, OpenMode mode,
                                                           FileCalls& calls = system_file_calls());

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool is_direct() const { return is_direct_; }
  [[nodiscard]] bool is_writable() const { return mode_ != OpenMode::kRead; }
  // What the file system says of this file, else the logical block of the device below; nullopt: not known,
  // or direct I/O is not supported. Memory is never aligned to less than 512 bytes. Always there for a direct
  // File.
  [[nodiscard]] std::optional<DirectAlignment> direct_alignment() const { return alignment_; }

  [[nodiscard]] FileIdentity identity() const { return identify(fd_, path_); }
  [[nodiscard]] std::uint64_t size_bytes() const { return identity().size_bytes; }
  // Throws IoError where the file is not, or is no longer, the one that `before` was asked of.
  void check_unchanged(const FileIdentity& before) const;

  // Reads until `out` is full or the file ends; the bytes that were there. On a direct File address, offset
  // and length are aligned (InvalidArgument); a tail is read by asking for its length rounded up.
  [[nodiscard]] std::size_t read_up_to(std::span<std::byte> out, std::uint64_t offset) const;
  // As read_up_to, but an early end of the file throws IoError with the offset, what was expected and what is
  // there.
  void read_at(std::span<std::byte> out, std::uint64_t offset) const;
  // Writes all of `from`. Alignment as above. Throws IoError.
  void write_at(std::span<const std::byte> from, std::uint64_t offset);

  // Blocks until the data is on the device.
  void sync();
  // Makes the file at least so long and reserves its space, so that writes there do not run out of it. False
  // where the file system cannot reserve: the file then is as long, with holes. Throws IoError, ENOSPC where
  // there is no such space.
  [[nodiscard]] bool allocate(std::uint64_t bytes);
  void resize(std::uint64_t bytes);

  // Asks the system to forget its cached pages of the range (`bytes` 0: to the end). Those not yet on the
  // device stay (sync first), and so do the ends of larger pieces that reach beyond the range: drop whole
  // files.
  void drop_cache(FileRange range) const;
  // Bytes of the file in the page cache, by pages. The system answers only who owns or may write the file;
  // others get an estimate from 64 pages.
  [[nodiscard]] std::uint64_t resident_bytes() const;

 private:
  File(UniqueFd fd, std::string path, OpenMode mode, bool is_direct, FileCalls& calls);
  void check_alignment(const void* address, std::size_t bytes, std::uint64_t offset) const;
  [[nodiscard]] std::uint32_t granule_bytes() const;

  UniqueFd fd_;
  std::string path_;
  OpenMode mode_;
  bool is_direct_;
  std::optional<DirectAlignment> alignment_;
  FileCalls* calls_;
};

}  // namespace metrale::io
