// SPDX-License-Identifier: Apache-2.0
// The main of every program of CUDA tests.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "cuda/support/devices.h"
#include "support/golden.h"

namespace {

constexpr int kNoDevice = 77;

bool take(std::string_view argument) {
  metrale::test::CudaTestDevice& chosen = metrale::test::cuda_test_device();
  if (argument.starts_with("--device=cuda:")) {
    chosen.device = argument.substr(9);
    chosen.ordinal = std::stoi(std::string(argument.substr(14)));
  } else if (argument == "--path=portable") {
    chosen.path = metrale::backends::CudaCodePath::kPortable;
  } else if (argument.starts_with("--cublaslt=")) {
    chosen.cublaslt = argument.substr(11);
  } else if (argument.starts_with("--golden=")) {
    metrale::test::golden_directory() = argument.substr(9);
  } else if (argument.starts_with("--model=")) {
    metrale::test::demo_model_directory() = argument.substr(8);
  } else if (argument != "--path=best") {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  // Some kernels of the tests wait for the host or for each other, on streams that must not share a queue.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (take(argv[i])) continue;
    std::fprintf(
        stderr,
        "unknown argument %s: --device=cuda:N, --path=best|portable, --cublaslt=LIBRARY, --golden=DIR, "
        "--model=DIR\n",
        argv[i]);
    return 2;
  }
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  try {
    static_cast<void>(metrale::test::open_cuda());
  } catch (const metrale::Error& error) {
    std::fprintf(stderr, "no device to test on: %s\n", error.what());
    return kNoDevice;
  }
  return RUN_ALL_TESTS();
}
