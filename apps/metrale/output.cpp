// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::app {

Output::Output(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  temporary_ = fmt::format("{}.{}.part", path_, ::getpid());
  file_ = UniqueFd(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_.is_open()) throw IoError("cannot create", temporary_, errno);
}

Output::~Output() {
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
  if (path_.empty()) return;
  if (::fsync(file_.get()) != 0 && errno != EINVAL) throw IoError("cannot write", path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw IoError("cannot create", path_, errno);
  file_.reset();
}

}  // namespace metrale::app
