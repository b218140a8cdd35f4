// SPDX-License-Identifier: Apache-2.0
// metrale synth: a model directory with seeded random weights.
#include <memory>
#include <string>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/engine/synthetic_model.h>

#include "commands.h"
#include "engine_flags.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "progress.h"

namespace metrale::app {
namespace {

struct SynthFlags {
  std::string directory;
  engine::SyntheticModel model;
  std::string dtype = "bf16";
  std::string max_shard_size = "5G";
  unsigned threads = 0;
};

int synth(const SynthFlags& flags, const runtime::Environment& environment) {
  engine::SyntheticModel model = flags.model;
  model.dtype = flags.dtype == "f32"   ? quant::ElementType::kF32
                : flags.dtype == "f16" ? quant::ElementType::kF16
                                       : quant::ElementType::kBf16;
  engine::SynthesisOptions options;
  options.max_shard_bytes = parse_bytes(flags.max_shard_size, "--max-shard-size");
  if (options.max_shard_bytes == 0) throw InvalidArgument("--max-shard-size: 0 holds no tensor");
  options.threads = flags.threads != 0 ? flags.threads : environment.threads.value_or(0);
  ProgressLine progress("writing");
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  engine::write_synthetic_model(flags.directory, model, options);
  return kOk;
}

}  // namespace

Action add_synth(CLI::App& command, const runtime::Environment& environment) {
  const auto flags = std::make_shared<SynthFlags>();
  command.add_option("directory", flags->directory, "Where the model is written: new, or empty")->required();
  command.add_option("--arch", flags->model.architecture, "Architecture: llama, qwen3 or mistral")
      ->check(CLI::IsMember({"llama", "qwen3", "mistral"}))
      ->capture_default_str();
  command.add_option("--like", flags->model.like, "Shapes: tiny, or those of a well-known model of 1b or 8b")
      ->check(CLI::IsMember({"tiny", "1b", "8b"}))
      ->capture_default_str();
  add_seed_flag(command, flags->model.seed, "Seed of the weights");
  command.add_option("--dtype", flags->dtype, "Element type of the tensors: bf16, f32 or f16")
      ->check(CLI::IsMember({"bf16", "f32", "f16"}))
      ->capture_default_str();
  command
      .add_option("--max-shard-size", flags->max_shard_size, "Most bytes of tensors in a file, such as 5G")
      ->capture_default_str();
  command
      .add_option("--threads", flags->threads,
                  "Threads that make the values (0: one for each usable processor)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  return [flags, environment] { return synth(*flags, environment); };
}

}  // namespace metrale::app
