// SPDX-License-Identifier: Apache-2.0
// Loads from an overlay file system, as containers have it: mounted by a child in namespaces of its own.
#include <filesystem>
#include <fstream>
#include <functional>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <metrale/base/error.h>

#include "weights/loader_support.h"

namespace metrale::weights {
namespace {

constexpr int kFailed = 1;
constexpr int kNoOverlay = 77;

void write_text(const char* path, const std::string& text) {
  std::ofstream(path) << text;
}

// Whoever may not mount becomes root of a user namespace of its own.
bool enter_namespaces() {
  const uid_t user = ::getuid();
  const gid_t group = ::getgid();
  if (user == 0 && ::unshare(CLONE_NEWNS) == 0) return true;
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", fmt::format("0 {} 1", user));
  write_text("/proc/self/gid_map", fmt::format("0 {} 1", group));
  return true;
}

// Runs `work` with the folder of a model as the lower layer of an overlay; its path there is the argument.
void on_overlay(const std::string& lower, const std::function<void(const std::string&)>& work) {
  const TempDir dir;
  for (const char* name : {"upper", "work", "merged"}) std::filesystem::create_directory(dir.file(name));
  const std::string layers =
      fmt::format("lowerdir={},upperdir={},workdir={}", lower, dir.file("upper"), dir.file("work"));
  const std::string merged = dir.file("merged");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!enter_namespaces() || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("overlay", merged.c_str(), "overlay", 0, layers.c_str()) != 0) {
      ::_exit(kNoOverlay);
    }
    try {
      work(merged);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ::_exit(testing::Test::HasFailure() ? kFailed : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoOverlay) GTEST_SKIP() << "no overlay can be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "in the child, see above";
}

TEST(LoaderOnOverlay, EveryPathGivesTheBytes) {
  const RandomModel model(51);
  on_overlay(model.path(), [&](const std::string& path) {
    const auto directory = ModelDirectory::open(path);
    const auto loads = load_all(directory);
    for (const LoadPath way : {LoadPath::kAuto, LoadPath::kDirect, LoadPath::kBuffered, LoadPath::kMap}) {
      SCOPED_TRACE(to_string(way));
      CollectingSink sink(loads);
      const LoadReport report = load_tensors(directory, loads, sink, small_chunks(way));
      EXPECT_TRUE(sink.is_complete());
      for (std::size_t i = 0; i < loads.size(); ++i) {
        EXPECT_EQ(sink.bytes(i), model.bytes(loads[i].tensor.info().name));
      }
      for (const FileLoad& file : report.files) EXPECT_FALSE(file.reason.empty());
    }
  });
}

// A write to a file of the lower layer makes a copy in the upper one, which readers of the old one do not
// see.
TEST(LoaderOnOverlay, AFileThatIsCopiedUpBeforeTheLoadIsFound) {
  const RandomModel model(52);
  on_overlay(model.path(), [&](const std::string& path) {
    const auto directory = ModelDirectory::open(path);
    const auto loads = load_all(directory);
    {
      std::fstream file(directory.files()[0].path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('x');
    }
    CollectingSink sink(loads);
    EXPECT_THROW((void)load_tensors(directory, loads, sink, small_chunks()), IoError);
  });
}

}  // namespace
}  // namespace metrale::weights
