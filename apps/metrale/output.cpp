// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "interrupt.h"

namespace metrale::app {

Output::Output(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  std::error_code absent;
  const auto status = std::filesystem::status(path_, absent);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    // A device, a pipe or a terminal is written to as it is; a directory fails here.
    file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file_.is_open()) throw IoError("cannot write", path_, errno);
    return;
  }
  // Through a link the file behind it is replaced, not the link.
  if (std::filesystem::exists(status)) path_ = std::filesystem::canonical(path_).string();
  temporary_ = fmt::format("{}.{}.part", path_, ::getpid());
  file_ = UniqueFd(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_.is_open()) throw IoError("cannot create", temporary_, errno);
  remove_on_second_interrupt(temporary_.c_str());
}

Output::~Output() {
  if (temporary_.empty()) return;
  keep_on_second_interrupt(temporary_.c_str());
  if (file_.is_open()) ::unlink(temporary_.c_str());
}

void Output::write(std::string_view text) {
  const int fd = path_.empty() ? STDOUT_FILENO : file_.get();
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      throw IoError("cannot write", path_.empty() ? "standard output" : path_, errno);
    }
  }
}

void Output::commit() {
  if (temporary_.empty()) return;
  if (::fsync(file_.get()) != 0 && errno != EINVAL) throw IoError("cannot write", path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw IoError("cannot create", path_, errno);
  file_.reset();
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code failed;
  const auto status = std::filesystem::status(a, failed);
  if (std::filesystem::exists(status)) {
    return std::filesystem::is_regular_file(status) && std::filesystem::equivalent(a, b, failed);
  }
  if (std::filesystem::exists(b, failed)) return false;
  const auto place = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, failed), failed);
  };
  return place(a) == place(b);
}

}  // namespace metrale::app
