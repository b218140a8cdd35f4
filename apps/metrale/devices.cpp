// SPDX-License-Identifier: Apache-2.0
// metrale devices: what models can run on here.
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "exit_codes.h"
#include "output.h"

namespace metrale::app {

Action add_devices(CLI::App& command, const runtime::Environment& environment) {
  struct Flags {
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  command.add_flag("--json", flags->json, "One JSON object a device");
  return [flags, environment] {
    Output output("");
    DeviceFlags cpu;
    cpu.device = "cpu";
    for (const auto& device : runtime::list_devices(backend_options(cpu, environment))) {
      if (flags->json) {
        nlohmann::json line{{"name", device.name},
                            {"description", device.description},
                            {"total_memory_bytes", device.total_memory_bytes},
                            {"free_memory_bytes", device.free_memory_bytes}};
        if (!device.unavailable.empty()) line["unavailable"] = device.unavailable;
        output.write(line.dump() + "\n");
      } else if (!device.unavailable.empty()) {
        output.write(fmt::format("{:8} not usable: {}\n", device.name, device.unavailable));
      } else {
        output.write(fmt::format("{:8} {}; {:.1f} GiB of memory, {:.1f} free\n", device.name,
                                 device.description,
                                 static_cast<double>(device.total_memory_bytes) / (1U << 30),
                                 static_cast<double>(device.free_memory_bytes) / (1U << 30)));
      }
    }
    return kOk;
  };
}

}  // namespace metrale::app
