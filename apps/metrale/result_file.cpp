// SPDX-License-Identifier: Apache-2.0
#include "result_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/weights/atomic_file.h>

#include "interrupt.h"
#include "line_reader.h"

namespace metrale::app {
namespace {

constexpr std::uint64_t kMaxResultBytes = std::uint64_t{1} << 30;

struct stat stat_of(int fd, const std::string& name) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) throw IoError("cannot read", name, errno);
  return status;
}

// Calls `visit(line)` for every line of the file. Throws Cancelled on a signal.
template <class Visit>
void for_each_line(const std::string& path, Visit&& visit) {
  const UniqueFd file = open_for_reading(path);
  LineReader reader(file.get(), path, kMaxResultBytes);
  TextLine line;
  for (;;) {
    if (interrupted()) throw Cancelled("interrupted while reading " + path);
    const LineReader::Status status = reader.next(line, std::chrono::milliseconds(0));
    if (status == LineReader::Status::kEnd) return;
    if (status == LineReader::Status::kLine) visit(line);
  }
}

struct Survey {
  std::vector<std::uint64_t> run_again;  // line numbers
  std::uint64_t end = 0;                 // of the last whole line
};

Survey survey(const std::string& path, const ResultFile::OnKept& on_kept) {
  Survey result;
  for_each_line(path, [&](const TextLine& line) {
    if (!line.has_end && result.end != 0) return;
    const auto known = line.has_end ? parse_result_line(line.text) : std::nullopt;
    // What would be thrown away must look like ours: the name may be another file's.
    if (!known && (line.has_end || !may_begin_result(line.text))) {
      throw FormatError(
          path, line.offset,
          fmt::format("line {} is no result of metrale batch; --overwrite replaces the file", line.number));
    }
    if (!known) return;
    result.end = line.end;
    if (known->run_again) {
      result.run_again.push_back(line.number);
    } else {
      on_kept(*known);
    }
  });
  return result;
}

// The file without the lines that are to run again; it changes whole or not at all.
void take_out(const std::string& path, int fd, const Survey& survey) {
  // Nobody may read the new file before it, who could not read the old one.
  weights::AtomicFile shorter(path, 0600);
  shorter.take_access_of(fd);
  for_each_line(path, [&](TextLine& line) {
    if (!line.has_end || std::ranges::binary_search(survey.run_again, line.number)) return;
    line.text += '\n';
    shorter.write(std::as_bytes(std::span(line.text)));
  });
  shorter.commit();
}

}  // namespace

ResultFile::ResultFile(const std::string& path, ExistingFile existing, int input_fd, const OnKept& on_kept)
    : path_(path) {
  if (path_.empty()) return;
  open();
  const struct stat own = stat_of(file_.get(), path_);
  is_regular_ = S_ISREG(own.st_mode);
  if (!is_regular_) return;
  const struct stat input = stat_of(input_fd, "the input");
  if (own.st_dev == input.st_dev && own.st_ino == input.st_ino)
    throw InvalidArgument(fmt::format("'{}' is the input; the results need another file", path_));
  lock();
  size_bytes_ = static_cast<std::uint64_t>(own.st_size);
  if (existing == ExistingFile::kRefuse && size_bytes_ != 0) {
    throw InvalidArgument(
        fmt::format("'{}' exists: --resume goes on with it, --overwrite replaces it", path_));
  }
  truncate_first_ = existing == ExistingFile::kOverwrite;
  if (existing == ExistingFile::kResume) resume(on_kept);
}

ResultFile::~ResultFile() {
  if (is_new_) ::unlink(path_.c_str());
}

void ResultFile::open() {
  std::error_code unknown;
  const bool is_absent =
      std::filesystem::status(path_, unknown).type() == std::filesystem::file_type::not_found;
  file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.is_open()) throw IoError("cannot write", path_, errno);
  // Through a link, one to nowhere too, now that the file is there: what takes the file's place, or removes
  // it, leaves the link alone.
  const auto real = std::filesystem::canonical(path_, unknown);
  is_new_ = is_absent && !unknown;
  if (!unknown) path_ = real.string();
}

void ResultFile::lock() const {
  // Where the file system has no locks, there is none.
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw IoError("cannot write", path_, errno, 0, "another run writes to it");
}

void ResultFile::resume(const OnKept& on_kept) {
  const Survey found = survey(path_, on_kept);
  if (!found.run_again.empty()) {
    take_out(path_, file_.get(), found);
    open();
    lock();
  } else if (::ftruncate(file_.get(), static_cast<off_t>(found.end)) != 0) {
    throw IoError("cannot truncate", path_, errno);
  }
  const off_t end = ::lseek(file_.get(), 0, SEEK_END);
  if (end < 0) throw IoError("cannot write", path_, errno);
  size_bytes_ = static_cast<std::uint64_t>(end);
}

void ResultFile::append(std::string_view line) {
  const int fd = path_.empty() ? STDOUT_FILENO : file_.get();
  if (truncate_first_ && ::ftruncate(fd, 0) != 0) throw IoError("cannot truncate", path_, errno);
  if (truncate_first_) size_bytes_ = 0;
  truncate_first_ = false;
  is_new_ = false;
  for (std::string_view left = line; !left.empty();) {
    const ssize_t written = ::write(fd, left.data(), left.size());
    if (written >= 0) {
      left.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      const IoError error("cannot write", path_.empty() ? "standard output" : path_, errno, 0,
                          is_regular_ ? "what is written stays; --resume goes on from there" : "");
      // Should that fail too, a run that resumes takes the torn line off.
      if (is_regular_) static_cast<void>(::ftruncate(fd, static_cast<off_t>(size_bytes_)));
      throw error;
    }
  }
  size_bytes_ += line.size();
}

void ResultFile::sync() {
  if (!is_regular_) return;
  append("");
  while (::fsync(file_.get()) != 0) {
    if (errno != EINTR) throw IoError("cannot sync", path_, errno);
  }
}

}  // namespace metrale::app
