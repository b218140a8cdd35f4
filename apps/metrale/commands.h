// SPDX-License-Identifier: Apache-2.0
// The program's commands. Each adds its flags to the parser and returns what runs when it was chosen.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include <metrale/runtime/environment.h>
#include <metrale/runtime/runtime.h>

namespace metrale::app {

// Returns an exit code; throws for everything that goes wrong.
using Action = std::function<int()>;

[[nodiscard]] Action add_generate(CLI::App& command, const runtime::Environment& environment);
[[nodiscard]] Action add_batch(CLI::App& command, const runtime::Environment& environment);
[[nodiscard]] Action add_score(CLI::App& command, const runtime::Environment& environment);
[[nodiscard]] Action add_calibrate(CLI::App& command, const runtime::Environment& environment);
[[nodiscard]] Action add_plan(CLI::App& command);
[[nodiscard]] Action add_synth(CLI::App& command, const runtime::Environment& environment);
[[nodiscard]] Action add_replay(CLI::App& command, const runtime::Environment& environment);
[[nodiscard]] Action add_quant_report(CLI::App& command, const runtime::Environment& environment);
[[nodiscard]] Action add_trace(CLI::App& command);
[[nodiscard]] Action add_info(CLI::App& command);
[[nodiscard]] Action add_load_bench(CLI::App& command, const runtime::Environment& environment);
[[nodiscard]] Action add_verify(CLI::App& command);
[[nodiscard]] Action add_convert(CLI::App& command);
[[nodiscard]] Action add_tokenize(CLI::App& command);
[[nodiscard]] Action add_devices(CLI::App& command, const runtime::Environment& environment);

// These print what they find in `program`, which is complete when they run and outlives them.
[[nodiscard]] Action add_completion(CLI::App& command, const CLI::App& program);
[[nodiscard]] Action add_man(CLI::App& command, const CLI::App& program);

// --device, --threads, --cpus, --numa, --cuda-path, --memory, shared by every command that opens a backend.
struct DeviceFlags {
  std::string device = "auto";
  unsigned threads = 0;
  std::string cpus;
  std::string numa;
  std::string cuda_path;
  std::string memory;
};
void add_device_flags(CLI::App& command, DeviceFlags& flags);
// Flags win over the environment. Throws InvalidArgument.
[[nodiscard]] runtime::BackendOptions backend_options(const DeviceFlags& flags,
                                                      const runtime::Environment& environment);

// "24G", "512M", "100K" or plain bytes; powers of 1024, as "24GiB" is. "24GB" is a power of 1000. Throws
// InvalidArgument naming `flag`.
[[nodiscard]] std::uint64_t parse_bytes(const std::string& text, const char* flag);

}  // namespace metrale::app
