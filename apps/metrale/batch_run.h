// SPDX-License-Identifier: Apache-2.0
// BatchRun: the lines of an input through an engine and into a file of results, with a bounded number of them
// in memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <metrale/engine/engine.h>

#include "batch_line.h"
#include "batch_report.h"
#include "batch_result.h"
#include "id_table.h"
#include "line_reader.h"
#include "prompt_encoder.h"
#include "result_file.h"
#include "result_order.h"

namespace metrale::app {

struct BatchSettings {
  engine::Request defaults;  // of every line
  std::string model;         // how results name it where the line does not
  bool has_text = false;     // the engine has a tokenizer
  bool keeps_order = true;
  std::uint64_t max_in_flight = 1;  // answers asked for and not ended
  std::uint64_t input_bytes = 0;    // for the progress line; 0: not known
};

// A line longer than this is its own error.
inline constexpr std::uint64_t kMaxLineBytes = std::uint64_t{64} << 20;

class BatchRun {
 public:
  // Everything outlives this. `ids` has the results that `results` has already.
  BatchRun(engine::Engine& engine, PromptEncoder& encoder, LineReader& input, ResultFile& results,
           IdTable& ids, BatchSettings settings);
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  // Blocking: to the end of the input, or to a signal, which leaves the lines in flight without a result.
  // Whatever ends it early, results that waited for one before them are written. Throws what the engine, the
  // input and the results throw for more than one line's fault.
  void run();
  [[nodiscard]] const BatchTotals& totals() const { return totals_; }

 private:
  // A line whose answers are under way.
  struct Active {
    BatchLine line;
    std::uint64_t place = 0;
    LineResult result;
  };

  void run_lines();
  void keep_finished() noexcept;
  [[nodiscard]] bool has_room() const;
  void take_lines();
  void take(const TextLine& text);
  void start(BatchLine line);
  void submit(BatchLine& line, std::uint64_t place);
  void on_event(const engine::StepEvent& event);
  void finish(engine::RequestId id, Active& active);
  void cancel_all();
  [[nodiscard]] std::string progress_text(Nanoseconds time) const;

  engine::Engine* engine_;
  PromptEncoder* encoder_;
  LineReader* input_;
  ResultFile* results_;
  IdTable* ids_;
  BatchSettings settings_;
  ResultOrder order_;
  std::map<engine::RequestId, Active> active_;
  std::uint64_t in_flight_ = 0;  // answers
  bool input_ended_ = false;
  BatchTotals totals_;
};

}  // namespace metrale::app
