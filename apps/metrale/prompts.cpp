// SPDX-License-Identifier: Apache-2.0
#include "prompts.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>

#include "interrupt.h"

namespace metrale::app {
namespace {

constexpr std::uint64_t kMaxPromptBytes = std::uint64_t{256} << 20;

// Until its end; `name` is for messages.
std::string read_stream(int fd, const std::string& name) {
  std::string text;
  std::array<char, 65'536> buffer{};
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) return text;
    if (got > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
      if (text.size() > kMaxPromptBytes) throw FormatError(name, 0, "more than 256 MiB of prompts");
    } else if (errno != EINTR) {
      throw IoError("cannot read", name, errno);
    } else if (interrupted()) {
      throw Cancelled("interrupted while reading " + name);
    }
  }
}

// A line of a .jsonl file: {"prompt": "…"} or {"tokens": [1, 2]}.
Prompt parse_json_prompt(const std::string& line, const std::string& path, std::size_t number) {
  const auto refuse = [&](const std::string& why) {
    return FormatError(path, 0, fmt::format("line {}: {}", number, why));
  };
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    throw refuse(error.what());
  }
  const bool has_text = json.is_object() && json.contains("prompt") && json["prompt"].is_string();
  const bool has_tokens = json.is_object() && json.contains("tokens") && json["tokens"].is_array();
  if (has_text == has_tokens) throw refuse(R"(expected {"prompt": "text"} or {"tokens": [ids]})");
  if (has_text) return {.text = json["prompt"].get<std::string>(), .tokens = std::nullopt};
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : json["tokens"]) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > 0x7FFFFFFF)
      throw refuse("a token id was expected");
    ids.push_back(id.get<std::int32_t>());
  }
  return {.text = {}, .tokens = std::move(ids)};
}

std::vector<Prompt> read_batch(const std::string& path) {
  std::vector<Prompt> prompts;
  std::istringstream lines(read_source(path));
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    prompts.push_back(path.ends_with(".jsonl") ? parse_json_prompt(line, path, number)
                                               : Prompt{.text = line, .tokens = std::nullopt});
  }
  if (prompts.empty()) throw FormatError(path, 0, "no prompts: one a line was expected");
  return prompts;
}

}  // namespace

std::string read_source(const std::string& path) {
  if (path == "-") return read_stream(STDIN_FILENO, "standard input");
  const UniqueFd file = open_for_reading(path);
  return read_stream(file.get(), path);
}

std::vector<std::int32_t> parse_token_list(const std::string& text, std::string_view flag) {
  std::vector<std::int32_t> ids;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::istringstream words(text.substr(begin, end - begin));
    const std::size_t before = ids.size();
    for (std::string word; words >> word;) {
      std::int32_t id = 0;
      const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (error != std::errc{} || stop != word.data() + word.size() || id < 0) {
        throw InvalidArgument(fmt::format("{}: '{}' (entry {}) is no token id", flag, word, ids.size() + 1));
      }
      ids.push_back(id);
    }
    if (ids.size() == before) {
      throw InvalidArgument(
          ids.empty() && end == text.size()
              ? fmt::format("{}: no token ids", flag)
              : fmt::format("{}: entry {} is empty, at character {}", flag, ids.size() + 1, begin + 1));
    }
    begin = end + 1;
  }
  return ids;
}

std::vector<Prompt> read_prompts(const PromptSources& sources) {
  const int given = (sources.text ? 1 : 0) + (sources.file.empty() ? 0 : 1) + (sources.tokens ? 1 : 0) +
                    (sources.batch.empty() ? 0 : 1);
  if (given > 1) throw InvalidArgument("give one of --prompt, --file, --tokens and --batch");
  if (!sources.batch.empty()) return read_batch(sources.batch);
  if (sources.tokens) return {{.text = {}, .tokens = parse_token_list(*sources.tokens)}};
  Prompt prompt{.text = sources.text ? *sources.text : read_source(sources.file.empty() ? "-" : sources.file),
                .tokens = std::nullopt};
  if (prompt.text.empty()) throw InvalidArgument("the prompt is empty");
  return {std::move(prompt)};
}

}  // namespace metrale::app
