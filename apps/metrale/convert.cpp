// SPDX-License-Identifier: Apache-2.0
// metrale convert: a model directory with other element types or other files.
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/weights/safetensors.h>

#include "commands.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "model_converter.h"
#include "output.h"
#include "progress.h"

namespace metrale::app {
namespace {

using nlohmann::ordered_json;

struct ConvertFlags {
  std::string in;
  std::string out;
  std::string dtype;
  std::vector<std::string> keep;
  std::string max_shard_bytes;
  bool force = false;
  bool json = false;
};

std::string as_json(const ConvertFlags& flags, const ConvertReport& report) {
  ordered_json overflows = ordered_json::array();
  for (const Overflow& overflow : report.overflows)
    overflows.push_back({{"tensor", overflow.tensor}, {"values", overflow.values}});
  const ordered_json json{{"output", flags.out},
                          {"files", report.files},
                          {"copied", report.copied},
                          {"tensors", report.tensors},
                          {"converted", report.converted},
                          {"bytes", report.bytes},
                          {"overflows", std::move(overflows)},
                          {"warnings", report.warnings}};
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string as_text(const ConvertFlags& flags, const ConvertReport& report) {
  return fmt::format("{}: {} tensors, {} of them converted, {} bytes in {} {}\n", flags.out, report.tensors,
                     report.converted, report.bytes, report.files.size(),
                     report.files.size() == 1 ? "file" : "files");
}

void warn(const ConvertFlags& flags, const ConvertReport& report) {
  for (const std::string& warning : report.warnings) fmt::print(stderr, "metrale: warning: {}\n", warning);
  constexpr std::size_t kShown = 8;
  std::uint64_t values = 0;
  for (std::size_t i = 0; i < report.overflows.size(); ++i) {
    values += report.overflows[i].values;
    if (i >= kShown) continue;
    fmt::print(stderr, "metrale: warning: tensor '{}': {} finite values are infinite in {}\n",
               weights::printable_name(report.overflows[i].tensor), report.overflows[i].values, flags.dtype);
  }
  if (report.overflows.size() > kShown) {
    fmt::print(stderr, "metrale: warning: {} values of {} tensors in all; --json lists them\n", values,
               report.overflows.size());
  }
}

int convert(const ConvertFlags& flags) {
  ConvertOptions options;
  if (flags.dtype == "bf16") options.dtype = quant::ElementType::kBf16;
  if (flags.dtype == "fp16") options.dtype = quant::ElementType::kF16;
  if (flags.dtype == "fp32") options.dtype = quant::ElementType::kF32;
  options.keep = flags.keep;
  expects(flags.keep.empty() || options.dtype, "--keep goes with --dtype");
  if (!flags.max_shard_bytes.empty()) {
    options.max_shard_bytes = parse_bytes(flags.max_shard_bytes, "--max-shard-bytes");
    if (options.max_shard_bytes == 0) throw InvalidArgument("--max-shard-bytes: 0 holds no tensor");
  }
  options.replace = flags.force;
  ProgressLine progress("converting");
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  const ConvertReport report = convert_model(flags.in, flags.out, options);
  progress.clear();
  warn(flags, report);
  Output output("");
  output.write(flags.json ? as_json(flags, report) : as_text(flags, report));
  return kOk;
}

}  // namespace

Action add_convert(CLI::App& command) {
  const auto flags = std::make_shared<ConvertFlags>();
  command.add_option("path", flags->in, "Model directory or .safetensors file")->required();
  command.add_option("-o,--output", flags->out, "Directory that is written: new, or empty")->required();
  command
      .add_option("--dtype", flags->dtype,
                  "Element type of floating tensors: bf16, fp16 or fp32 (default: theirs)")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command.add_option("--keep", flags->keep,
                     "Tensors that keep their type: a name with * and ?, such as '*.bias'; may be repeated");
  command.add_option("--max-shard-bytes", flags->max_shard_bytes,
                     "Most bytes of tensors in a file, such as 5GB (default: the files of the source)");
  command.add_flag("--force", flags->force, "Replace a model that is there; other files stay");
  command.add_flag("--json", flags->json, "One JSON object");
  return [flags] { return convert(*flags); };
}

}  // namespace metrale::app
