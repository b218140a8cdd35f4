// SPDX-License-Identifier: Apache-2.0
#include "request_flags.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "engine_flags.h"

namespace metrale::app {
namespace {

void add_end_flags(CLI::App& command, RequestFlags& flags) {
  command.add_option("-n,--max-tokens", flags.max_tokens, "Most tokens to generate")
      ->check(CLI::Range(1U, 1U << 30))
      ->capture_default_str();
  command.add_flag("--ignore-eos", flags.ignore_eos, "Do not stop at the model's end-of-text tokens");
  // One value each time such an option is named: the parser would otherwise take the command's file for one
  // more value, and "[END]" for a list.
  command.add_option("--stop-id", flags.stop_ids, "Token id that ends the text (repeatable)")
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 2147483647));
  command.add_option("--stop", flags.stop, "Text that ends the answer, left out of it (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--tenant", flags.tenant, "Whose prompts: prefixes are shared within one tenant only");
}

void add_sampling_flags(CLI::App& command, RequestFlags& flags) {
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
  command
      .add_option("--logit-bias", flags.logit_bias,
                  "ID:VALUE added to a token's logit; -inf bans (repeatable)")
      ->allow_extra_args(false);
  command.add_flag("--adaptive-sampling", flags.adaptive_sampling,
                   "Take a token that is nearly certain without sampling");
  add_seed_flag(command, s.seed, "Seed of the random choices");
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

sampling::SamplingParams sampling_params(const RequestFlags& flags,
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

}  // namespace

void add_request_flags(CLI::App& command, RequestFlags& flags) {
  add_end_flags(command, flags);
  add_sampling_flags(command, flags);
}

engine::Request request_without_prompt(const RequestFlags& flags,
                                       const engine::GenerationDefaults& defaults) {
  expects(std::ranges::find(flags.stop, "") == flags.stop.end(), "--stop: the text is empty");
  engine::Request request;
  request.sampling = sampling_params(flags, defaults);
  request.max_new_tokens = flags.max_tokens;
  request.stop_ids = flags.stop_ids;
  request.stop = flags.stop;
  request.ignore_eos = flags.ignore_eos;
  request.tenant = flags.tenant;
  return request;
}

}  // namespace metrale::app
