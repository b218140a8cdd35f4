// SPDX-License-Identifier: Apache-2.0
#include "batch_run.h"

#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/clock.h>
#include <metrale/base/error.h>

#include "interrupt.h"
#include "progress.h"

namespace metrale::app {
namespace {

// Of finished results that wait for one before them; beyond it no new line is started.
constexpr std::size_t kMaxHeldBytes = std::size_t{64} << 20;
// How long an idle run waits for its input before it looks for a signal.
constexpr std::chrono::milliseconds kInputWait{100};

// Why a request that ended is no success, if it is not.
std::optional<LineError> error_of(engine::FinishReason reason) {
  if (reason == engine::FinishReason::kTimeout)
    return LineError{std::string(kTimeout), "the request's timeout was over before it ended"};
  if (reason == engine::FinishReason::kNoLogits)
    return LineError{std::string(kNoLogits), "the model gave no token a finite logit"};
  return std::nullopt;
}

}  // namespace

BatchRun::BatchRun(engine::Engine& engine, PromptEncoder& encoder, LineReader& input, ResultFile& results,
                   IdTable& ids, BatchSettings settings)
    : engine_(&engine),
      encoder_(&encoder),
      input_(&input),
      results_(&results),
      ids_(&ids),
      settings_(std::move(settings)),
      order_(settings_.keeps_order, [this](const FinishedLine& line) {
        results_->append(line.text);
        ++(line.has_error ? totals_.failed : totals_.ok);
      }) {}

void BatchRun::run() {
  try {
    run_lines();
  } catch (...) {
    keep_finished();
    throw;
  }
}

// What is finished is not lost with what ends the run.
void BatchRun::keep_finished() noexcept {
  try {
    totals_.early += order_.let_out();
  } catch (const std::exception&) {
    // The results may be what failed; the first error says so.
  }
}

void BatchRun::run_lines() {
  const SteadyClock clock;
  const Nanoseconds begin = clock.now();
  ProgressLine progress("batch");
  while (!interrupted()) {
    take_lines();
    if (engine_->idle() && input_ended_) return;
    for (const engine::StepEvent& event : engine_->step()) on_event(event);
    progress.show([&] { return progress_text(clock.now() - begin); });
  }
  cancel_all();
  totals_.early = order_.let_out();
  totals_.unfinished = order_.unwritten();
}

bool BatchRun::has_room() const {
  return in_flight_ < settings_.max_in_flight && order_.held_bytes() < kMaxHeldBytes;
}

void BatchRun::take_lines() {
  TextLine text;
  while (!input_ended_ && has_room() && !interrupted()) {
    // Requests that run do not wait for a slow input.
    const auto wait = active_.empty() ? kInputWait : std::chrono::milliseconds(0);
    const LineReader::Status status = input_->next(text, wait);
    if (status == LineReader::Status::kNothingYet) return;
    input_ended_ = status == LineReader::Status::kEnd;
    if (!input_ended_ && (!text.text.empty() || text.too_long)) take(text);
  }
}

void BatchRun::take(const TextLine& text) {
  BatchLine line = parse_batch_line(text.text, text.number, settings_.defaults);
  if (text.too_long)
    line.error = {std::string(kLineTooLong), fmt::format("the line has more than {} bytes", kMaxLineBytes)};
  IdTable::Found found = ids_->meet(id_key(line.custom_id));
  if (found == IdTable::Found::kAgain) {
    line.error = {
        std::string(kDuplicateId),
        line.custom_id == default_custom_id(line.number)
            ? fmt::format("a line before this one has the custom_id \"{}\", which a line {} without one has",
                          line.custom_id, line.number)
            : "a line before this one has the same custom_id"};
    found = ids_->meet(repeated_id_key(line.number));
  }
  if (found == IdTable::Found::kResult) {
    ++totals_.kept;
  } else {
    start(std::move(line));
  }
}

void BatchRun::start(BatchLine line) {
  const std::uint64_t place = order_.open();
  const auto refuse = [&](const Error& error) { line.error = {std::string(kInvalidRequest), error.what()}; };
  try {
    if (!line.error) return submit(line, place);
  } catch (const InvalidArgument& error) {
    refuse(error);
  } catch (const FormatError& error) {
    refuse(error);
  } catch (const Unsupported& error) {
    refuse(error);
  } catch (const std::bad_alloc&) {
    line.error = out_of_memory();
  }
  order_.close(place, {to_error_line(line), /*has_error=*/true});
}

void BatchRun::submit(BatchLine& line, std::uint64_t place) {
  engine::Request request = std::move(line.request);
  if (line.text) request.prompt = encoder_->text(*line.text, "the prompt");
  if (line.is_chat) request.prompt = encoder_->chat(line.messages, "the conversation");
  const std::uint32_t n = request.n;
  // Made before the request is the engine's: where there is no memory for it, nothing was asked.
  std::map<engine::RequestId, Active> made;
  Active& active = made[engine::RequestId{}];
  active.line.number = line.number;
  active.line.custom_id = line.custom_id;
  active.line.is_chat = line.is_chat;
  active.line.model = line.model;
  active.place = place;
  if (n <= engine::kMaxAnswers) active.result.choices.resize(n);  // else the engine refuses it
  for (ChoiceResult& choice : active.result.choices) {
    if (settings_.has_text) choice.text = "";
  }
  auto node = made.extract(made.begin());
  node.key() = engine_->submit(std::move(request));
  active_.insert(std::move(node));
  in_flight_ += n;
}

void BatchRun::on_event(const engine::StepEvent& event) {
  Active& active = active_.at(event.request);
  ChoiceResult& choice = active.result.choices[event.choice];
  if (event.token) choice.tokens.push_back(*event.token);
  if (choice.text) *choice.text += event.text;
  if (event.finished) {
    choice.finish_reason = engine::to_string(*event.finished);
    --in_flight_;
    if (const auto error = error_of(*event.finished)) active.result.error = error;
  }
  if (event.request_finished) finish(event.request, active);
}

void BatchRun::finish(engine::RequestId id, Active& active) {
  const engine::RequestStats stats = engine_->take_stats(id);
  LineResult& result = active.result;
  result.model = active.line.model.empty() ? settings_.model : active.line.model;
  result.prompt_tokens = stats.prompt_tokens;
  result.cached_tokens = stats.cached_tokens;
  result.output_tokens = stats.output_tokens;
  totals_.prompt_tokens += stats.prompt_tokens;
  totals_.cached_tokens += stats.cached_tokens;
  totals_.output_tokens += stats.output_tokens;
  order_.close(active.place, {to_result_line(active.line, result), result.error.has_value()});
  active_.erase(id);
}

void BatchRun::cancel_all() {
  for (const auto& [id, active] : active_) engine_->cancel(id);
  while (!engine_->idle()) static_cast<void>(engine_->step());
}

std::string BatchRun::progress_text(Nanoseconds time) const {
  std::string text = fmt::format("{} done, {} failed", totals_.ok + totals_.kept, totals_.failed);
  if (settings_.input_bytes != 0) {
    text += fmt::format(", {:.0f} % read", 100.0 * static_cast<double>(input_->bytes()) /
                                               static_cast<double>(settings_.input_bytes));
  }
  const double seconds = std::chrono::duration<double>(time).count();
  text += fmt::format(", {:.0f} tokens/s", static_cast<double>(totals_.output_tokens) / seconds);
  return text;
}

}  // namespace metrale::app
