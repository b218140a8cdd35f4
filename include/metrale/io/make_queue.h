// SPDX-License-Identifier: Apache-2.0
// Makes queues: the choice among posix threads, io_uring and cuFile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <metrale/io/io_queue.h>

namespace metrale::io {

enum class IoEngineKind : std::uint8_t {
  kAuto,   // io_uring; posix, with a message in the log, where the system refuses it
  kPosix,  // threads that read and write; works everywhere
  kUring,
  kCufile,  // to and from device memory; the driver's compatibility mode counts
};

struct IoOptions {
  IoEngineKind kind = IoEngineKind::kAuto;
  EngineLimits limits = {};
  unsigned threads = 4;        // of posix and cuFile
  bool sq_polling = false;     // io_uring: a thread of the kernel looks for submissions
  bool use_registered = true;  // io_uring: fixed buffers and files
  // cuFile: the library's file names, tried in this order.
  std::vector<std::string> cufile_libraries = {"libcufile.so.0", "libcufile.so"};
  std::string cuda_library = "libcuda.so.1";  // what cuFile itself looks for
  // posix and cuFile: runs first on each thread; binds the device that cuFile's memory belongs to.
  std::function<void()> on_thread_start = {};
};

// Throws InvalidArgument for options that make no sense, Unsupported where the kind that was asked for is not
// there.
[[nodiscard]] std::unique_ptr<IoEngine> make_io_engine(const IoOptions& options);
// The engine, and a queue over it.
[[nodiscard]] std::unique_ptr<IoQueue> make_io_queue(const IoOptions& options);

}  // namespace metrale::io
