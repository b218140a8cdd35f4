// SPDX-License-Identifier: Apache-2.0
#include "generate_flags.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include <metrale/base/error.h>

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
  command.add_option("-n,--max-tokens", flags.max_tokens, "Most tokens to generate")
      ->check(CLI::Range(1U, 1U << 30))
      ->capture_default_str();
  command.add_flag("--ignore-eos", flags.ignore_eos, "Do not stop at the model's end-of-text tokens");
  command.add_option("--stop-id", flags.stop_ids, "Token id that ends the text (repeatable)")
      ->check(CLI::Range(0, 2147483647));
}

void add_sampling_flags(CLI::App& command, GenerateFlags& flags) {
  sampling::SamplingParams& s = flags.sampling;
  // The default of these is what generation_config.json recommends, where it asks for sampling.
  command.add_option("--temperature", flags.temperature,
                     "0 takes the most likely token (default: the model's, else 0)");
  command
      .add_option("--top-k", flags.top_k,
                  "Keep the k most likely tokens (0: all; default: the model's, else 0)")
      ->check(CLI::Range(0, 2147483647));
  command.add_option("--top-p", flags.top_p,
                     "Keep the smallest set with this probability (default: the model's, else 1)");
  command.add_option("--min-p", flags.min_p,
                     "Drop tokens below this fraction of the best (default: the model's, else 0)");
  command
      .add_option("--top-n-sigma", s.top_n_sigma,
                  "Keep logits within n standard deviations of the best (0: off)")
      ->capture_default_str();
  command.add_flag("--temperature-last", s.temperature_last, "Filter first, apply the temperature last");
  command.add_option("--repetition-penalty", flags.repetition_penalty,
                     "Divide the logits of tokens seen (1: off; default: the model's, else 1)");
  command.add_option("--presence-penalty", s.presence_penalty, "Subtract once from tokens already generated")
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", s.frequency_penalty, "Subtract for each time a token was generated")
      ->capture_default_str();
  command.add_option("--penalty-window", s.penalty_window, "Penalties see the last n tokens (0: all)")
      ->check(CLI::Range(0, 2147483647))
      ->capture_default_str();
  command
      .add_option("--dry-multiplier", s.dry_multiplier,
                  "Strength of the penalty on repeated sequences (0: off)")
      ->capture_default_str();
  command.add_option("--dry-base", s.dry_base, "Growth of that penalty with the length of the repeat")
      ->capture_default_str();
  command.add_option("--dry-allowed-length", s.dry_allowed_length, "Repeats shorter than this are free")
      ->capture_default_str();
  command.add_option("--logit-bias", flags.logit_bias,
                     "ID:VALUE added to a token's logit; -inf bans (repeatable)");
  command.add_flag("--adaptive-sampling", flags.adaptive_sampling,
                   "Take a token that is nearly certain without sampling");
  add_seed_flag(command, s.seed, "Seed of the random choices");
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
  add_compute_flags(command, flags.engine);
  command.add_flag("--no-graphs", flags.no_graphs, "Launch decode kernels one by one");
  add_device_flags(command, flags.device);
}

std::pair<std::uint32_t, float> parse_bias(const std::string& text) {
  const std::size_t colon = text.find(':');
  std::uint32_t id = 0;
  float value = 0;
  const char* end = text.data() + text.size();
  const auto id_end = std::from_chars(text.data(), text.data() + std::min(colon, text.size()), id);
  const bool ok = colon != std::string::npos && id_end.ec == std::errc{} && id_end.ptr == text.data() + colon;
  const auto value_end = ok ? std::from_chars(text.data() + colon + 1, end, value) : std::from_chars_result{};
  if (!ok || value_end.ec != std::errc{} || value_end.ptr != end) {
    throw InvalidArgument(fmt::format("--logit-bias: '{}' is not ID:VALUE", text));
  }
  return {id, value};
}

}  // namespace

void add_generate_flags(CLI::App& command, GenerateFlags& flags) {
  add_input_flags(command, flags);
  add_sampling_flags(command, flags);
  add_limit_flags(command, flags);
}

sampling::SamplingParams sampling_params(const GenerateFlags& flags,
                                         const engine::GenerationDefaults& defaults) {
  sampling::SamplingParams params = flags.sampling;
  const auto choose = [](auto& value, const auto& flag, const auto& recommended) {
    if (flag || recommended) value = flag ? *flag : *recommended;
  };
  params.temperature = 0;
  choose(params.temperature, flags.temperature, defaults.temperature);
  choose(params.top_k, flags.top_k, defaults.top_k);
  choose(params.top_p, flags.top_p, defaults.top_p);
  choose(params.min_p, flags.min_p, defaults.min_p);
  choose(params.repetition_penalty, flags.repetition_penalty, defaults.repetition_penalty);
  for (const std::string& bias : flags.logit_bias) params.logit_bias.push_back(parse_bias(bias));
  if (flags.adaptive_sampling) params.adaptive_threshold = sampling::kDefaultAdaptiveThreshold;
  return params;
}

engine::EngineOptions engine_options(const GenerateFlags& flags, const engine::ModelConfig& config,
                                     std::size_t num_prompts, std::size_t longest_prompt) {
  engine::EngineOptions options;
  const std::uint64_t needed = std::max<std::uint64_t>(2, longest_prompt + flags.max_tokens);
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
