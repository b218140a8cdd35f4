// SPDX-License-Identifier: Apache-2.0
// The choice of the engine, and systems that refuse: tried in child processes, since the refusals are for
// good.
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/io/make_queue.h>

#include "support/temp_dir.h"

namespace metrale::io {
namespace {

constexpr int kSkipped = 77;

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// The exit code of a child that runs `body`: 0, or 1 where it throws.
int run_in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      body();
    } catch (const std::exception& error) {
      static_cast<void>(std::fprintf(stderr, "child: %s\n", error.what()));
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// What the log says from now on.
std::shared_ptr<std::ostringstream> watch_log() {
  auto text = std::make_shared<std::ostringstream>();
  log().sinks() = {std::make_shared<spdlog::sinks::ostream_sink_mt>(*text)};
  return text;
}

std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// io_uring_setup fails with `error_number` from now on.
void forbid_io_uring(int error_number) {
  std::array<sock_filter, 4> code{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  sock_fprog program{.len = code.size(), .filter = code.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    ::_exit(kSkipped);
  }
}

// As a user without privileges who may lock 64 KiB.
void limit_locked_memory() {
  const rlimit limit{.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) ::_exit(kSkipped);
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(kSkipped);
}

void expect_file_is_read(IoQueue& queue, const File& file, std::span<std::byte> memory,
                         BufferId buffer = {}) {
  const FileId id = queue.register_file(file);
  require(queue.prepare(read_request(id, 0, memory, 0, buffer)).has_value(), "prepare");
  queue.submit();
  std::array<Completion, 1> done{};
  require(queue.poll(done, 1) == 1, "nothing was delivered");
  require(done[0].status == IoStatus::kComplete, "the transfer failed");
  require(memory[0] == std::byte{'m'} && memory.back() == std::byte{'m'}, "the bytes are wrong");
  queue.unregister_file(id);
}

void expect_child_succeeds(const std::function<void()>& body) {
  const int code = run_in_child(body);
  if (code == kSkipped) GTEST_SKIP() << "this system does not do it";
  EXPECT_EQ(code, 0);
}

class MakeQueueTest : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 1 << 20;
  TempDir dir_;
  File file_ = File::open(dir_.write("file", std::string(kBytes, 'm')), OpenMode::kRead);
};

TEST_F(MakeQueueTest, RefusedIoUringFallsBackWithAMessage) {
  for (const int error : {EPERM, ENOSYS}) {
    expect_child_succeeds([&] {
      const auto text = watch_log();
      forbid_io_uring(error);
      const std::unique_ptr<IoQueue> queue = make_io_queue({});
      require(queue->name() == "posix", "the queue is not posix");
      require(times_in(text->str(), "refuses io_uring") == 1, "no message: " + text->str());
      std::vector<std::byte> memory(kBytes);
      expect_file_is_read(*queue, file_, memory);
    });
  }
}

TEST_F(MakeQueueTest, RefusedIoUringThatWasAskedForIsUnsupported) {
  expect_child_succeeds([] {
    forbid_io_uring(EPERM);
    try {
      static_cast<void>(make_io_engine({.kind = IoEngineKind::kUring}));
    } catch (const Unsupported& error) {
      require(times_in(error.what(), "Operation not permitted") == 1, error.what());
      return;
    }
    throw std::runtime_error("nothing was thrown");
  });
}

TEST_F(MakeQueueTest, LowLimitOfLockedMemoryFallsBackWithOneMessage) {
  expect_child_succeeds([&] {
    const auto text = watch_log();
    limit_locked_memory();
    const std::unique_ptr<IoQueue> queue = make_io_queue({});
    if (queue->name() != "io_uring" || !queue->capabilities().registered_buffers) ::_exit(kSkipped);
    const AlignedBuffer memory(2 * kBytes, 4096);
    const BufferId first = queue->register_buffer(memory.span().first(kBytes));
    const BufferId second = queue->register_buffer(memory.span().subspan(kBytes));
    require(queue->stats().plain_buffers == 2, "the buffers were pinned");
    require(times_in(text->str(), "RLIMIT_MEMLOCK is 64 KiB") == 1, "not one message: " + text->str());
    expect_file_is_read(*queue, file_, memory.span().first(kBytes), first);
    expect_file_is_read(*queue, file_, memory.span().subspan(kBytes), second);
    queue->unregister_buffer(first);
  });
}

TEST_F(MakeQueueTest, OptionsThatMakeNoSenseAreRefused) {
  const auto refuses = [](const IoOptions& options) {
    EXPECT_THROW(static_cast<void>(make_io_queue(options)), InvalidArgument);
  };
  refuses({.limits = {.depth = 0}});
  refuses({.limits = {.depth = 5'000}});
  refuses({.limits = {.max_files = 0}});
  refuses({.limits = {.max_buffers = 100'000}});
  refuses({.kind = IoEngineKind::kPosix, .threads = 0});
}

TEST_F(MakeQueueTest, EveryThreadStartsAsAsked) {
  std::atomic<int> started{0};
  const std::unique_ptr<IoQueue> queue =
      make_io_queue({.kind = IoEngineKind::kPosix, .threads = 3, .on_thread_start = [&] { ++started; }});

  EXPECT_EQ(started, 3);
}

TEST_F(MakeQueueTest, ThreadThatCannotStartFailsTheQueue) {
  EXPECT_THROW(
      static_cast<void>(make_io_queue(
          {.kind = IoEngineKind::kPosix, .on_thread_start = [] { throw DeviceError("bind", 1, ""); }})),
      DeviceError);
}

}  // namespace
}  // namespace metrale::io
