// SPDX-License-Identifier: Apache-2.0
#include "generate_flags.h"

#include <algorithm>

namespace metrale::app {
namespace {

constexpr std::size_t kDefaultMaxBatchSize = 16;

void add_input_flags(CLI::App& command, GenerateFlags& flags) {
  command.add_option("-m,--model", flags.model, "Model directory (config.json, safetensors, tokenizer.json)")
      ->required();
  command.add_option("-p,--prompt", flags.prompts.text, "Prompt text");
  command.add_option("-f,--file", flags.prompts.file,
                     "Read the prompt from a file (- is standard input, the default)");
  command.add_option("--tokens", flags.prompts.tokens,
                     "Prompt as token ids, comma-separated; needs no tokenizer");
  command.add_option(
      "--batch", flags.prompts.batch,
      "File of prompts that run together: one a line, or .jsonl with \"prompt\" or \"tokens\"");
  command.add_flag("--chat", flags.chat, "Put the prompt into the model's chat template as a user message");
  command.add_option("--system", flags.system, "System message (with --chat)");
  command.add_option("--chat-template", flags.chat_template,
                     "With --chat: chatml, llama3, mistral, none or a Jinja file instead of the model's own");
  command.add_option("-o,--output", flags.output, "Write to a file, which appears when it is complete");
  command.add_flag("--json", flags.json, "One JSON object a request");
  command.add_flag("--stats", flags.stats, "Print load time, TTFT, speeds and memory on standard error");
}

void add_limit_flags(CLI::App& command, GenerateFlags& flags) {
  command
      .add_option("--max-seq-len", flags.max_seq_len,
                  "Longest sequence, prompt and answer (default: what is needed)")
      ->check(CLI::Range(2U, 1U << 30));
  command
      .add_option("--max-batch-size", flags.max_batch_size,
                  "Most sequences in a step (default: the prompts, up to 16)")
      ->check(CLI::Range(1U, 65'536U));
  command
      .add_option("--kv-blocks", flags.kv_blocks,
                  "KV blocks to allocate (0: enough for every sequence at full length)")
      ->capture_default_str();
  add_engine_flags(command, flags.engine);
  add_kv_calibration_flags(command, flags.engine);
  add_load_flags(command, flags.engine);
  add_prefix_caching_flag(command, flags.engine, /*by_default=*/false);
  add_compute_flags(command, flags.engine);
  command.add_flag("--no-graphs", flags.no_graphs, "Launch decode kernels one by one");
  add_metrics_flags(command, flags.metrics);
  add_device_flags(command, flags.device);
}

}  // namespace

void add_generate_flags(CLI::App& command, GenerateFlags& flags) {
  add_input_flags(command, flags);
  add_request_flags(command, flags.request);
  add_limit_flags(command, flags);
}

engine::EngineOptions engine_options(const GenerateFlags& flags, const engine::ModelConfig& config,
                                     std::size_t num_prompts, std::size_t longest_prompt) {
  engine::EngineOptions options;
  const std::uint64_t needed = std::max<std::uint64_t>(2, longest_prompt + flags.request.max_tokens);
  options.max_seq_len = flags.max_seq_len.value_or(
      static_cast<std::uint32_t>(std::min<std::uint64_t>(needed, config.max_positions())));
  options.max_batch_size =
      flags.max_batch_size.value_or(static_cast<std::uint32_t>(std::min(num_prompts, kDefaultMaxBatchSize)));
  options.kv_blocks = flags.kv_blocks;
  apply_engine_flags(flags.engine, options);
  options.use_graphs = !flags.no_graphs;
  return options;
}

}  // namespace metrale::app
