// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: the document and its post-processor.
#include "engine/tokenizer/tokenizer_json.h"

#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::engine {
namespace {

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

TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& origin) {
  simdjson::dom::parser parser;
  const JsonNode root = parse_json(parser, json, origin);
  if (const auto version = root.find("version"); version && version->string() != "1.0")
    version->unsupported("1.0");
  TokenizerSpec spec;
  read_model(root, spec);
  read_post_processor(root, spec);
  read_text_steps(root, spec);
  if (spec.bpe.byte_level && spec.bpe.byte_fallback)
    root.at("model").at("byte_fallback").unsupported("false where the pre_tokenizer ends with ByteLevel");
  return spec;
}

}  // namespace metrale::engine
