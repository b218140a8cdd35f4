// SPDX-License-Identifier: Apache-2.0
// CapturedLog: what the library logs at warning level and above during one test.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <spdlog/sinks/ostream_sink.h>

#include <metrale/base/log.h>

namespace metrale {

class CapturedLog {
 public:
  CapturedLog() : before_(log().sinks()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    sink->set_pattern("%v");
    log().sinks() = {sink};
  }
  ~CapturedLog() { log().sinks() = before_; }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  [[nodiscard]] std::vector<std::string> lines() {
    log().flush();
    std::vector<std::string> lines;
    std::istringstream in(text_.str());
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  std::ostringstream text_;
  std::vector<spdlog::sink_ptr> before_;
};

}  // namespace metrale
