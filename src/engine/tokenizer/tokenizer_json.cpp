// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: the document and the steps around the model. The model itself is in model_json.cpp.
#include "engine/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::engine {
namespace {

void read_normalizer(const JsonNode& node, std::vector<NormalForm>& forms) {
  const JsonNode type = node.at("type");
  if (type.string() == "NFC") {
    forms.push_back(NormalForm::kNfc);
  } else if (type.string() == "NFKC") {
    forms.push_back(NormalForm::kNfkc);
  } else if (type.string() == "Sequence") {
    for (const JsonNode& part : node.at("normalizers").elements()) read_normalizer(part, forms);
  } else {
    type.unsupported("NFC, NFKC, Sequence");
  }
}

SplitBehavior read_behavior(const JsonNode& node) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  const std::string_view name = node.string();
  const auto found = std::find_if(kBehaviors.begin(), kBehaviors.end(),
                                  [&](const auto& behavior) { return behavior.first == name; });
  if (found == kBehaviors.end()) {
    node.unsupported("Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
  }
  return found->second;
}

Regex read_pattern(const JsonNode& node) {
  const std::string where = fmt::format("tokenizer '{}', {},", node.origin(), node.where());
  if (const auto regex = node.find("Regex")) return Regex::from_oniguruma(regex->string(), where);
  const auto text = node.find("String");
  if (!text) node.unsupported("{\"Regex\": …}, {\"String\": …}");
  if (text->string().empty()) text->fail("is empty");
  return Regex::from_literal(text->string(), where);
}

void read_pre_tokenizer(const JsonNode& node, std::vector<PreTokenizerStep>& steps) {
  const JsonNode type = node.at("type");
  const std::string_view name = type.string();
  if (name == "Sequence") {
    for (const JsonNode& part : node.at("pretokenizers").elements()) read_pre_tokenizer(part, steps);
    return;
  }
  // What follows ByteLevel would see the byte alphabet instead of the text.
  if (!steps.empty() && std::holds_alternative<ByteLevelStep>(steps.back()))
    type.unsupported("ByteLevel last");
  if (name == "ByteLevel") {
    const auto use_regex = node.find("use_regex");
    steps.emplace_back(ByteLevelStep{.add_prefix_space = node.at("add_prefix_space").boolean(),
                                     .use_regex = !use_regex || use_regex->boolean()});
  } else if (name == "Digits") {
    steps.emplace_back(DigitsStep{.individual = node.at("individual_digits").boolean()});
  } else if (name == "Split") {
    const auto invert = node.find("invert");
    steps.emplace_back(SplitStep{.pattern = read_pattern(node.at("pattern")),
                                 .behavior = read_behavior(node.at("behavior")),
                                 .invert = invert && invert->boolean()});
  } else {
    type.unsupported("ByteLevel, Split, Digits, Sequence");
  }
}

void read_decoder(const JsonNode& node) {
  const JsonNode type = node.at("type");
  if (type.string() == "ByteLevel") return;
  if (type.string() != "Sequence") type.unsupported("ByteLevel");
  const std::vector<JsonNode> parts = node.at("decoders").elements();
  if (parts.size() != 1) node.unsupported("ByteLevel alone");
  read_decoder(parts.front());
}

// The ids that a template puts for one of its special tokens.
void append_special(const JsonNode& processor, const JsonNode& piece, std::size_t vocab_size,
                    std::vector<TokenId>& ids) {
  const JsonNode name = piece.at("id");
  const auto entry = processor.at("special_tokens").find(name.string());
  if (!entry) name.fail(fmt::format("{} is not among the special_tokens", in_quotes(name.string())));
  for (const JsonNode& id : entry->at("ids").elements()) {
    if (id.integer() < 0 || std::cmp_greater_equal(id.integer(), vocab_size)) {
      id.fail(fmt::format("is {}, outside the vocabulary of {} tokens", id.integer(), vocab_size));
    }
    ids.push_back(static_cast<TokenId>(id.integer()));
  }
}

void read_template(const JsonNode& node, TokenizerSpec& spec) {
  std::vector<TokenId> before;
  std::vector<TokenId> after;
  bool seen_text = false;
  const JsonNode single = node.at("single");
  for (const JsonNode& piece : single.elements()) {
    if (const auto special = piece.find("SpecialToken")) {
      append_special(node, *special, spec.spellings.size(), seen_text ? after : before);
    } else if (const auto sequence = piece.find("Sequence")) {
      if (seen_text || sequence->at("id").string() != "A") single.unsupported("one Sequence, of id A");
      seen_text = true;
    } else {
      piece.unsupported("SpecialToken, Sequence");
    }
  }
  if (!seen_text) single.unsupported("one Sequence, of id A");
  spec.prefix = std::move(before);
  spec.suffix = std::move(after);
}

void read_processor(const JsonNode& node, TokenizerSpec& spec, bool& has_template) {
  const JsonNode type = node.at("type");
  if (type.string() == "TemplateProcessing") {
    if (has_template) type.unsupported("one TemplateProcessing");
    has_template = true;
    read_template(node, spec);
  } else if (type.string() == "Sequence") {
    for (const JsonNode& part : node.at("processors").elements()) read_processor(part, spec, has_template);
  } else if (type.string() != "ByteLevel") {  // which only trims offsets
    type.unsupported("ByteLevel, TemplateProcessing, Sequence");
  }
}

}  // namespace

void read_post_processor(const JsonNode& root, TokenizerSpec& spec) {
  bool has_template = false;
  if (const auto processor = root.find("post_processor")) read_processor(*processor, spec, has_template);
}

void read_text_steps(const JsonNode& root, TokenizerSpec& spec) {
  const std::string who = fmt::format("tokenizer '{}'", root.origin());
  if (const auto normalizer = root.find("normalizer")) read_normalizer(*normalizer, spec.normal_forms);
  const auto pre_tokenizer = root.find("pre_tokenizer");
  if (!pre_tokenizer) throw Unsupported(who, "pre_tokenizer = null; supported: ByteLevel, Sequence");
  read_pre_tokenizer(*pre_tokenizer, spec.pre_tokenizer);
  if (spec.pre_tokenizer.empty() || !std::holds_alternative<ByteLevelStep>(spec.pre_tokenizer.back())) {
    pre_tokenizer->unsupported("ByteLevel, or a Sequence that ends with it");
  }
  const auto decoder = root.find("decoder");
  if (!decoder) throw Unsupported(who, "decoder = null; supported: ByteLevel");
  read_decoder(*decoder);
}

TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& origin) {
  simdjson::dom::parser parser;
  simdjson::dom::element document;
  const simdjson::error_code error = parser.parse(json.data(), json.size()).get(document);
  if (error != simdjson::SUCCESS) {
    throw FormatError(origin, 0,
                      fmt::format("is not a whole JSON document: {}", simdjson::error_message(error)));
  }
  if (!document.is_object()) throw FormatError(origin, 0, "must be a JSON object");
  const JsonNode root(document, "", origin);
  if (const auto version = root.find("version"); version && version->string() != "1.0")
    version->unsupported("1.0");
  TokenizerSpec spec;
  read_model(root, spec);
  read_post_processor(root, spec);
  read_text_steps(root, spec);
  return spec;
}

}  // namespace metrale::engine
