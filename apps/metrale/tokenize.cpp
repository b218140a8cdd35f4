// SPDX-License-Identifier: Apache-2.0
// metrale tokenize: text as tokens, and tokens as text.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/engine/detokenizer.h>
#include <metrale/engine/tokenizer.h>

#include "commands.h"
#include "exit_codes.h"
#include "output.h"
#include "prompts.h"

namespace metrale::app {
namespace {

using engine::TextRange;
using engine::TokenId;
using nlohmann::ordered_json;

struct Flags {
  std::string path;
  std::optional<std::string> text;
  std::string file;
  std::optional<std::string> ids;
  bool decode = false;
  bool no_special = false;
  bool no_parse_special = false;
  bool count = false;
  bool only_ids = false;
  bool json = false;
};

std::string input(const Flags& flags) {
  return flags.text ? *flags.text : read_source(flags.file.empty() ? "-" : flags.file);
}

// On one line: what does not print, and what is not whole UTF-8, as \n, \t, \r or \xNN.
std::string escaped(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t length = engine::whole_character_bytes(bytes);
    const auto first = static_cast<unsigned char>(bytes.front());
    if (length > 1 || (length == 1 && first >= 0x20 && first != 0x7F && first != '\\')) {
      out += bytes.substr(0, length);
    } else if (const std::size_t known = std::string_view("\\\n\r\t").find(bytes.front());
               known != std::string_view::npos) {
      out += std::string("\\") + "\\nrt"[known];
    } else {
      out += fmt::format("\\x{:02X}", first);
    }
    bytes.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

// Where each token lies in `text`; empty where their bytes are not the text's (a normalizer changed it).
// Tokens that the frame put there have no place.
std::vector<std::optional<TextRange>> places(const engine::Tokenizer& tokenizer,
                                             const std::vector<TokenId>& ids, std::string_view text) {
  std::vector<std::optional<TextRange>> ranges;
  std::size_t at = 0;
  for (const TokenId id : ids) {
    std::string_view bytes = tokenizer.token_bytes(id);
    // The space that some tokenizers put before a text.
    if (at == 0 && bytes.starts_with(' ') && !text.starts_with(bytes)) bytes.remove_prefix(1);
    if (text.substr(at).starts_with(bytes)) {
      ranges.emplace_back(TextRange{at, at + bytes.size()});
      at += bytes.size();
    } else if (tokenizer.is_special(id)) {
      ranges.emplace_back(std::nullopt);
    } else {
      return {};
    }
  }
  return at == text.size() ? ranges : std::vector<std::optional<TextRange>>();
}

std::string dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

// `text` is what the ids come from; absent where they were given.
std::string as_json(const engine::Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                    const std::optional<std::string>& text) {
  std::vector<std::optional<TextRange>> ranges;
  if (text) ranges = places(tokenizer, ids, *text);
  ordered_json tokens = ordered_json::array();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ordered_json token{{"id", ids[i]},
                       {"piece", escaped(tokenizer.token_bytes(ids[i]))},
                       {"token", tokenizer.token_spelling(ids[i])},
                       {"special", tokenizer.is_special(ids[i])}};
    if (text) {
      const std::optional<TextRange> range = ranges.empty() ? std::nullopt : ranges[i];
      token["begin"] = range ? ordered_json(range->begin) : ordered_json(nullptr);
      token["end"] = range ? ordered_json(range->end) : ordered_json(nullptr);
    }
    tokens.push_back(std::move(token));
  }
  return dump({{"count", ids.size()}, {"tokens", std::move(tokens)}});
}

std::string as_lines(const engine::Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string lines;
  for (const TokenId id : ids) lines += fmt::format("{:6} -> '{}'\n", id, escaped(tokenizer.token_bytes(id)));
  return lines;
}

std::string answer(const Flags& flags, const engine::Tokenizer& tokenizer) {
  std::optional<std::string> text;
  std::vector<TokenId> ids;
  if (flags.ids) {
    ids = parse_token_list(*flags.ids, "--ids");
  } else if (flags.decode) {
    ids = parse_token_list(input(flags), "--decode");
  } else {
    text = input(flags);
    ids = tokenizer.encode(
        *text, {.add_special_tokens = !flags.no_special, .parse_special = !flags.no_parse_special});
  }
  if (flags.decode) {
    const std::string decoded = tokenizer.decode(ids, flags.no_special);
    return flags.json ? dump({{"text", decoded}}) : decoded + "\n";
  }
  if (flags.count) return flags.json ? dump({{"count", ids.size()}}) : fmt::format("{}\n", ids.size());
  if (flags.only_ids) return flags.json ? dump(ids) : fmt::format("{}\n", fmt::join(ids, ","));
  return flags.json ? as_json(tokenizer, ids, text) : as_lines(tokenizer, ids);
}

int tokenize(const Flags& flags) {
  expects((flags.text ? 1 : 0) + (flags.file.empty() ? 0 : 1) + (flags.ids ? 1 : 0) <= 1,
          "give one of --text, --file and --ids");
  expects((flags.decode ? 1 : 0) + (flags.count ? 1 : 0) + (flags.only_ids ? 1 : 0) <= 1,
          "give one of --decode, --count and --only-ids");
  expects(!flags.no_parse_special || (!flags.ids && !flags.decode), "--no-parse-special goes with a text");
  std::filesystem::path path(flags.path);
  if (std::filesystem::is_directory(path)) path /= "tokenizer.json";
  const engine::Tokenizer tokenizer = engine::Tokenizer::load(path.string());
  Output output("");
  output.write(answer(flags, tokenizer));
  return kOk;
}

}  // namespace

Action add_tokenize(CLI::App& command) {
  const auto flags = std::make_shared<Flags>();
  command.add_option("path", flags->path, "Model directory or tokenizer.json")->required();
  command.add_option("--text", flags->text, "Text to tokenize");
  command.add_option("-f,--file", flags->file,
                     "Read the text from a file (- is standard input, the default)");
  command.add_option("--ids", flags->ids, "Token ids instead of a text, comma-separated");
  command.add_flag("--decode", flags->decode, "Write the text of the ids (of --ids, or read like a text)");
  command.add_flag("--no-special", flags->no_special,
                   "Put no BOS or EOS around the text; leave special tokens out of it with --decode");
  command.add_flag("--no-parse-special", flags->no_parse_special,
                   "Read special tokens spelled in the text as plain text");
  command.add_flag("--count", flags->count, "Print only how many tokens there are");
  command.add_flag("--only-ids", flags->only_ids, "Print only the ids, comma-separated");
  command.add_flag("--json", flags->json, "One JSON object");
  return [flags] { return tokenize(*flags); };
}

}  // namespace metrale::app
