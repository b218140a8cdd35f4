// SPDX-License-Identifier: Apache-2.0
#include "support/subprocess.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdexcept>
#include <sys/wait.h>
#include <tuple>
#include <unistd.h>

#include <metrale/base/fd.h>

extern char** environ;

namespace metrale {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
  UniqueFd read;
  UniqueFd write;
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& text : strings) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// Reads both pipes until they close, feeding standard input and sending the signal on the way.
void pump(pid_t child, Pipe& in, Pipe& out, Pipe& err, const ProcessOptions& options, ProcessResult& result) {
  std::string left = options.input;
  bool signalled = options.signal == 0;
  while (out.read.is_open() || err.read.is_open()) {
    if (left.empty()) in.write.reset();
    std::array<pollfd, 3> fds{
        {{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}, {in.write.get(), POLLOUT, 0}}};
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) throw std::runtime_error("poll failed");
    for (const auto& [slot, pipe, text] :
         {std::tuple{0U, &out, &result.out}, std::tuple{1U, &err, &result.err}}) {
      if (!pipe->read.is_open() || fds[slot].revents == 0) continue;
      std::array<char, 65'536> buffer{};
      const ssize_t got = ::read(pipe->read.get(), buffer.data(), buffer.size());
      if (got > 0) text->append(buffer.data(), static_cast<std::size_t>(got));
      if (got == 0) pipe->read.reset();
    }
    if (in.write.is_open() && fds[2].revents != 0) {
      const ssize_t sent = ::write(in.write.get(), left.data(), left.size());
      left.erase(0, sent > 0 ? static_cast<std::size_t>(sent) : left.size());
    }
    if (!signalled && (result.err + result.out).find(options.signal_after) != std::string::npos) {
      ::kill(child, options.signal);
      signalled = true;
    }
  }
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  Pipe in;
  Pipe out;
  Pipe err;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.read.get(), STDIN_FILENO);
  if (options.out_path.empty()) {
    ::posix_spawn_file_actions_adddup2(&actions, out.write.get(), STDOUT_FILENO);
  } else {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, options.out_path.c_str(), O_WRONLY, 0);
  }
  ::posix_spawn_file_actions_adddup2(&actions, err.write.get(), STDERR_FILENO);
  std::vector<std::string> argument_strings = arguments;
  std::vector<std::string> environment_strings = options.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment_strings.emplace_back(*entry);
  std::vector<char*> argv = pointers(argument_strings);
  std::vector<char*> envp = pointers(environment_strings);
  // A child that closes its input early must not end the test program.
  ::signal(SIGPIPE, SIG_IGN);

  pid_t child = 0;
  const int failed = ::posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start " + arguments[0] + ": " + std::strerror(failed));
  in.read.reset();
  out.write.reset();
  err.write.reset();

  ProcessResult result;
  pump(child, in, out, err, options, result);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace metrale
