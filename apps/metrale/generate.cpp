// SPDX-License-Identifier: Apache-2.0
// metrale generate: prompts in, text out, streamed as it comes.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/engine/engine.h>

#include "commands.h"
#include "exit_codes.h"
#include "generate_flags.h"
#include "interrupt.h"
#include "metrics_output.h"
#include "output.h"
#include "progress.h"
#include "prompt_encoder.h"
#include "report.h"

namespace metrale::app {
namespace {

using TokenList = std::vector<std::int32_t>;

// The prompts' ids.
std::vector<TokenList> encode(const std::vector<Prompt>& prompts, const engine::Tokenizer* tokenizer,
                              const GenerateFlags& flags) {
  PromptEncoder encoder(flags.model, tokenizer, flags.chat_template);
  std::vector<TokenList> ids;
  for (const Prompt& prompt : prompts) {
    if (prompt.tokens) {
      ids.push_back(*prompt.tokens);
      continue;
    }
    const std::string subject = fmt::format("prompt {}", ids.size() + 1);
    std::vector<engine::ChatMessage> messages;
    if (!flags.system.empty()) messages.push_back({"system", flags.system});
    messages.push_back({"user", prompt.text});
    ids.push_back(flags.chat ? encoder.chat(messages, subject) : encoder.text(prompt.text, subject));
  }
  return ids;
}

// Before the weights are read, so that a prompt that cannot fit fails at once.
void check_lengths(const std::vector<TokenList>& prompts, const engine::EngineOptions& options) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) throw InvalidArgument(fmt::format("prompt {} has no tokens", i + 1));
    if (prompts[i].size() >= options.max_seq_len) {
      throw InvalidArgument(
          fmt::format("prompt {} has {} tokens, which leaves no room for an answer: max_seq_len is {}", i + 1,
                      prompts[i].size(), options.max_seq_len));
    }
  }
}

// Puts the answers together, in the order in which the prompts were given.
class Writer {
 public:
  Writer(Output& output, const GenerateFlags& flags, const MetricsRegistry& metrics, bool has_text,
         std::size_t requests)
      : output_(&output),
        metrics_(&metrics),
        flags_(&flags),
        answers_(requests),
        batch_(!flags.prompts.batch.empty()),
        has_text_(has_text) {
    for (Answer& answer : answers_) {
      if (has_text) answer.text = "";
    }
  }

  void on_event(std::size_t request, const engine::StepEvent& event) {
    if (event.token) {
      answers_[request].tokens.push_back(*event.token);
      if (!has_text_) add_text(request, fmt::format("{} ", *event.token));
    }
    if (has_text_) add_text(request, event.text);
    if (event.finished) answers_[request].finished = event.finished;
  }

  void set_stats(std::size_t request, const engine::RequestStats& stats) { answers_[request].stats = stats; }

  // Writes what is complete, in order.
  void flush(const RunStats& run) {
    for (; next_ < answers_.size() && answers_[next_].finished; ++next_) {
      const Answer& answer = answers_[next_];
      if (flags_->json) {
        // With the last line all requests have ended: the metrics are those of the whole run.
        const bool is_last = next_ + 1 == answers_.size();
        output_->write(to_json_line(answer, run, is_last ? metrics_ : nullptr));
      } else if (batch_) {
        output_->write(fmt::format("== {}\n{}\n", next_ + 1, shown_[next_]));
      } else {
        output_->write("\n");
      }
    }
  }

  [[nodiscard]] const std::vector<Answer>& answers() const { return answers_; }

 private:
  void add_text(std::size_t request, const std::string& text) {
    if (std::optional<std::string>& own = answers_[request].text) *own += text;
    if (flags_->json || text.empty()) return;
    if (batch_) {
      shown_[request] += text;
    } else {
      output_->write(text);
    }
  }

  Output* output_;
  const MetricsRegistry* metrics_;
  const GenerateFlags* flags_;
  std::vector<Answer> answers_;
  bool batch_;
  bool has_text_;  // the directory has a tokenizer
  std::map<std::size_t, std::string> shown_;
  std::size_t next_ = 0;
};

double seconds_between(Nanoseconds begin, Nanoseconds end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Runs every request to its end, or to its cancellation by a signal.
void run_requests(engine::Engine& engine, const std::vector<TokenList>& prompts,
                  const engine::Request& request, Writer& writer, const RunStats& run) {
  std::map<engine::RequestId, std::size_t> index;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    engine::Request own = request;
    own.prompt = prompts[i];
    index[engine.submit(std::move(own))] = i;
  }
  while (!engine.idle()) {
    if (interrupted()) {
      for (const auto& [id, i] : index) engine.cancel(id);
    }
    for (const engine::StepEvent& event : engine.step()) {
      const std::size_t i = index.at(event.request);
      writer.on_event(i, event);
      if (event.request_finished) writer.set_stats(i, engine.take_stats(event.request));
    }
    writer.flush(run);
  }
}

int generate(const GenerateFlags& flags, const runtime::Environment& environment) {
  const SteadyClock clock;
  expects(flags.chat || flags.system.empty(), "--system goes with --chat");
  expects(flags.chat || flags.chat_template.empty(), "--chat-template goes with --chat");
  const std::vector<Prompt> prompts = read_prompts(flags.prompts);
  const bool any_tokens =
      std::ranges::any_of(prompts, [](const Prompt& prompt) { return prompt.tokens.has_value(); });
  expects(!flags.chat || !any_tokens, "--chat needs text prompts, not token ids");
  const engine::ModelConfig config = engine::load_model_config(flags.model);
  const bool any_texts = std::ranges::any_of(prompts, [](const Prompt& prompt) { return !prompt.tokens; });
  const std::optional<engine::Tokenizer> tokenizer = load_tokenizer(flags.model, /*needed=*/any_texts);
  const std::vector<TokenList> ids = encode(prompts, tokenizer ? &*tokenizer : nullptr, flags);
  const auto longest = std::ranges::max(ids, {}, &TokenList::size).size();
  engine::EngineOptions options = engine_options(flags, config, ids.size(), longest);
  options.tokenizer = tokenizer ? &*tokenizer : nullptr;
  const engine::Request request = request_without_prompt(flags.request, config.generation);
  sampling::validate(request.sampling, config.vocab_size);
  expects(request.stop.empty() || tokenizer, "--stop needs a model directory with a tokenizer");
  check_lengths(ids, options);
  Output output(flags.output);
  const auto backend = runtime::open_backend(backend_options(flags.device, environment));
  MetricsRegistry metrics;
  options.metrics = &metrics;
  const auto server = serve_metrics(flags.metrics, metrics);

  ProgressLine progress("loading");
  options.load.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  const Nanoseconds load_begin = clock.now();
  engine::Engine engine(*backend, flags.model, options, clock);
  progress.clear();
  const Nanoseconds run_begin = clock.now();
  RunStats run{
      .load_seconds = seconds_between(load_begin, run_begin),
      .kv_bytes_per_token = engine.cache().config().bytes_per_token(),
      .weight_bytes = engine.weight_bytes(),
      .arena_bytes = engine.arena_bytes(),
      .kv_cache_bytes = engine.cache().config().block_bytes_kv_all_layers() * engine.cache().num_blocks()};

  Writer writer(output, flags, metrics, tokenizer.has_value(), ids.size());
  run_requests(engine, ids, request, writer, run);
  run.wall_seconds = seconds_between(run_begin, clock.now());
  if (flags.stats) std::fputs(stats_text(writer.answers(), run).c_str(), stderr);
  engine.close();
  if (interrupted()) return kInterrupted;
  output.commit();
  const bool broken = std::ranges::any_of(writer.answers(), [](const Answer& answer) {
    return answer.finished == engine::FinishReason::kNoLogits;
  });
  if (broken) throw DeviceError("generate", 0, "a request ended because no token had a finite logit");
  return kOk;
}

}  // namespace

Action add_generate(CLI::App& command, const runtime::Environment& environment) {
  const auto flags = std::make_shared<GenerateFlags>();
  add_generate_flags(command, *flags);
  return [flags, environment] { return generate(*flags, environment); };
}

}  // namespace metrale::app
