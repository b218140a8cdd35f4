// SPDX-License-Identifier: Apache-2.0
// The CUDA backend on one device, through the path that the product takes: open_backend, kernel ids and
// graphs. Needs a device, so it is no part of `./dev bench`.
//
//   cuda_bench [--device cuda:N] [--path best|portable] [--cublaslt PATH] [--only PREFIX] [--model DIR]...
//              [--out FILE] [--commit REVISION]
#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "cuda/cases.h"

namespace metrale::bench {
namespace {

// The largest case of each: the KV of 32 sequences of 32k tokens and its queries; the logits of 8192 rows.
constexpr std::uint64_t kNoiseBytes = 4 * kGiB + 512 * kMiB;
constexpr std::uint64_t kRoomBytes = 4 * kGiB + 512 * kMiB;

struct Options {
  runtime::BackendOptions backend;
  std::string only;
  std::vector<std::string> models;
};

backends::CudaCodePath parse_path(const std::string& word) {
  if (word == "best") return backends::CudaCodePath::kBest;
  if (word == "portable") return backends::CudaCodePath::kPortable;
  throw InvalidArgument(fmt::format("--path {}: best and portable are there", word));
}

// --out and --commit are the report's.
Options parse_options(const std::vector<std::string>& words) {
  Options options;
  options.backend.device = "cuda:0";
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const std::string& name = words[i];
    if (i + 1 == words.size()) throw InvalidArgument(fmt::format("{} wants a value", name));
    const std::string& value = words[i + 1];
    if (name == "--device") {
      options.backend.device = value;
    } else if (name == "--path") {
      options.backend.cuda_path = parse_path(value);
    } else if (name == "--cublaslt") {
      options.backend.cublaslt = value;
    } else if (name == "--only") {
      options.only = value;
    } else if (name == "--model") {
      options.models.push_back(value);
    } else if (name != "--out" && name != "--commit") {
      throw InvalidArgument(fmt::format("unknown option {}", name));
    }
  }
  if (!options.backend.device.starts_with("cuda")) {
    throw InvalidArgument(fmt::format("--device {}: this program measures cuda:N", options.backend.device));
  }
  return options;
}

// The card, and how it was used.
std::string conditions(const Options& options) {
  const backends::CudaDevices found = backends::list_cuda_devices();
  if (found.devices.empty()) throw Unsupported("this machine", "a CUDA device: " + found.why_none);
  const std::string wanted =
      options.backend.device == "cuda" ? std::string("cuda:0") : options.backend.device;
  const auto device = std::ranges::find_if(found.devices, [&](const backends::CudaDevice& d) {
    return fmt::format("cuda:{}", d.ordinal) == wanted;
  });
  if (device == found.devices.end()) {
    throw Unsupported("this machine", fmt::format("{}: it has {}", wanted, found.devices.size()));
  }
  const bool portable = options.backend.cuda_path == backends::CudaCodePath::kPortable;
  const std::string library = options.backend.cublaslt.value_or("as found");
  return fmt::format(
      "{}, compute capability {}.{}, driver for CUDA {}.{}; {} code path, cuBLASLt {}; graphs of many "
      "launches "
      "over inputs that exceed the cache, medians of {} replays",
      device->name, device->compute_major, device->compute_minor, found.driver_version / 1000,
      found.driver_version % 1000 / 10, portable ? "portable" : "best", library.empty() ? "none" : library,
      Device::kRuns);
}

int run(int argc, char** argv) {
  const Options options = parse_options(std::vector<std::string>(argv + 1, argv + argc));
  Report report("cuda", conditions(options), argc, argv);
  Device device(options.backend, kNoiseBytes, kRoomBytes);
  Bench bench{
      .report = report, .device = device, .options = options.backend, .only = options.only, .limits = {}};
  bench.limits = measure_limits(bench);
  measure_attention(bench);
  measure_linear(bench);
  measure_linear_embedded(bench);
  measure_fp8(bench);
  measure_small_kernels(bench);
  device.release_memory();
  report.write();  // a model that does not load costs nothing else
  for (const std::string& model : options.models) {
    measure_engine(bench, model);
    measure_shared_prefix(bench, model);
  }
  report.write();
  return 0;
}

}  // namespace
}  // namespace metrale::bench

int main(int argc, char** argv) {
  try {
    return metrale::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_bench: %s\n", error.what());
    return 1;
  }
}
