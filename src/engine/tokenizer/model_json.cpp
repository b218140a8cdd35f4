// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: vocabulary, added tokens and merges.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace metrale::engine {
namespace {

using Ids = std::unordered_map<std::string_view, TokenId>;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;

void check_model(const JsonNode& model) {
  // Files older than the field hold a BPE where they hold merges.
  if (const auto type = model.find("type"); type && type->string() != "BPE") type->unsupported("BPE");
  if (const auto dropout = model.find("dropout")) {
    double share = 1;
    if (dropout->value().get(share) != simdjson::SUCCESS || share != 0) dropout->unsupported("null, 0");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto text = model.find(affix); text && !text->string().empty()) text->unsupported("null, \"\"");
  }
}

Ids read_vocab(const JsonNode& vocab) {
  Ids ids;
  const simdjson::dom::object object = vocab.object();
  ids.reserve(object.size());
  for (const auto& [spelling, value] : object) {
    std::int64_t id = -1;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id >= kMaxTokens) {
      vocab.fail(fmt::format("gives {} the id {}, which is no token id", in_quotes(spelling),
                             JsonNode(value, "", vocab.origin()).text()));
    }
    if (!ids.emplace(spelling, static_cast<TokenId>(id)).second) {
      vocab.fail(fmt::format("has {} twice", in_quotes(spelling)));
    }
  }
  if (ids.empty()) vocab.fail("is empty");
  return ids;
}

AddedToken read_added_token(const JsonNode& node) {
  AddedToken token;
  const JsonNode id = node.at("id");
  if (id.integer() < 0 || id.integer() >= kMaxTokens)
    id.fail(fmt::format("is {}, no token id", id.integer()));
  token.id = static_cast<TokenId>(id.integer());
  const JsonNode content = node.at("content");
  token.content = content.string();
  if (token.content.empty()) content.fail("is empty");
  if (token.content.size() > kMaxAddedTokenBytes) {
    content.fail(fmt::format("has {} bytes; {} at most", token.content.size(), kMaxAddedTokenBytes));
  }
  token.special = node.at("special").boolean();
  token.lstrip = node.at("lstrip").boolean();
  token.rstrip = node.at("rstrip").boolean();
  token.single_word = node.at("single_word").boolean();
  token.normalized = node.at("normalized").boolean();
  return token;
}

// Puts tokens in the places of their ids. Ids are checked against the number of tokens first, so that a wild
// one costs no memory.
class Placement {
 public:
  Placement(std::size_t count, TokenizerSpec& spec) : spec_(spec) {
    spec_.spellings.resize(count);
    spec_.in_model.resize(count);
    taken_.resize(count);
  }

  void put(const JsonNode& giver, std::string_view spelling, TokenId id) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= taken_.size()) {
      giver.fail(fmt::format("gives {} the id {}, but there are {} tokens: ids must be 0 to {} without gaps",
                             in_quotes(spelling), id, taken_.size(), taken_.size() - 1));
    }
    if (taken_[at]) {
      giver.fail(fmt::format("gives {} the id {}, which is that of {}", in_quotes(spelling), id,
                             in_quotes(spec_.spellings[at])));
    }
    taken_[at] = true;
    spec_.spellings[at] = spelling;
  }

 private:
  TokenizerSpec& spec_;
  std::vector<bool> taken_;
};

void read_added_tokens(const JsonNode& list, const Ids& model_ids, TokenizerSpec& spec) {
  Ids seen;
  for (const JsonNode& node : list.elements()) {
    const AddedToken& token = spec.added_tokens.emplace_back(read_added_token(node));
    const std::string name = in_quotes(token.content);
    if (!seen.emplace(node.at("content").string(), token.id).second)
      list.fail(fmt::format("has {} twice", name));
    const auto in_model = model_ids.find(token.content);
    if (in_model != model_ids.end() && in_model->second != token.id) {
      list.fail(fmt::format("gives {} the id {}, model.vocab {}", name, token.id, in_model->second));
    }
  }
}

void place_tokens(const JsonNode& root, const Ids& model_ids, TokenizerSpec& spec) {
  const auto is_new = [&](const AddedToken& token) { return !model_ids.contains(token.content); };
  const auto added = std::count_if(spec.added_tokens.begin(), spec.added_tokens.end(), is_new);
  Placement placement(model_ids.size() + static_cast<std::size_t>(added), spec);
  const JsonNode vocab = root.at("model").at("vocab");
  for (const auto& [spelling, id] : model_ids) {
    placement.put(vocab, spelling, id);
    spec.in_model[static_cast<std::size_t>(id)] = true;
  }
  for (const AddedToken& token : spec.added_tokens) {
    if (is_new(token)) placement.put(root.at("added_tokens"), token.content, token.id);
  }
}

// "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> read_pair(const JsonNode& node) {
  if (node.value().is_array()) {
    const std::vector<JsonNode> parts = node.elements();
    if (parts.size() != 2) node.fail(fmt::format("must name two tokens: {}", node.text()));
    return {parts[0].string(), parts[1].string()};
  }
  const std::string_view text = node.string();
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    node.fail(fmt::format("must be two tokens with a space between: {}", node.text()));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<Merge> read_merges(const JsonNode& list, const Ids& model_ids) {
  std::vector<Merge> merges;
  const std::vector<JsonNode> nodes = list.elements();
  merges.reserve(nodes.size());
  for (const JsonNode& node : nodes) {
    // The first line of the merges.txt that old files were made from.
    if (node.value().is_string() && node.string().starts_with("#version")) continue;
    const auto [left, right] = read_pair(node);
    const auto id_of = [&, left = left, right = right](std::string_view spelling) {
      const auto entry = model_ids.find(spelling);
      if (entry == model_ids.end()) {
        node.fail(fmt::format("joins {} and {}, but {} is not in model.vocab", in_quotes(left),
                              in_quotes(right), in_quotes(spelling)));
      }
      return entry->second;
    };
    const std::string result = std::string(left) + std::string(right);
    merges.push_back({.left = id_of(left), .right = id_of(right), .result = id_of(result)});
  }
  return merges;
}

}  // namespace

void read_model(const JsonNode& root, TokenizerSpec& spec) {
  const JsonNode model = root.at("model");
  check_model(model);
  const Ids model_ids = read_vocab(model.at("vocab"));
  if (const auto list = root.find("added_tokens")) read_added_tokens(*list, model_ids, spec);
  place_tokens(root, model_ids, spec);
  spec.bpe.merges = read_merges(model.at("merges"), model_ids);
  if (const auto unknown = model.find("unk_token")) {
    const auto entry = model_ids.find(unknown->string());
    if (entry == model_ids.end()) unknown->fail(fmt::format("{} is not in model.vocab", unknown->text()));
    spec.bpe.unknown = entry->second;
  }
  const auto fuse = model.find("fuse_unk");
  spec.bpe.fuse_unknown = fuse && fuse->boolean();
  const auto fallback = model.find("byte_fallback");
  spec.bpe.byte_fallback = fallback && fallback->boolean();
  const auto ignore = model.find("ignore_merges");
  spec.bpe.ignore_merges = ignore && ignore->boolean();
}

}  // namespace metrale::engine
