// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: normalizer, pre_tokenizer and decoder.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "engine/tokenizer/tokenizer_json.h"
#include "engine/tokenizer/utf8.h"

namespace metrale::engine {
namespace {

// The value that a name stands for in `names`; Unsupported lists them.
template <class Value, std::size_t N>
Value read_name(const JsonNode& node, const std::array<std::pair<std::string_view, Value>, N>& names) {
  const std::string_view name = node.string();
  std::string list;
  for (const auto& [known, value] : names) {
    if (known == name) return value;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", known);
  }
  node.unsupported(list);
}

SplitBehavior read_behavior(const JsonNode& node) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  return read_name(node, kBehaviors);
}

Regex read_pattern(const JsonNode& node) {
  const std::string where = fmt::format("tokenizer '{}', {},", node.origin(), node.where());
  if (const auto regex = node.find("Regex")) return Regex::from_oniguruma(regex->string(), where);
  const auto text = node.find("String");
  if (!text) node.unsupported("{\"Regex\": …}, {\"String\": …}");
  if (text->string().empty()) text->fail("is empty");
  return Regex::from_literal(text->string(), where);
}

ReplaceStep read_replace(const JsonNode& node) {
  return {.pattern = read_pattern(node.at("pattern")), .content = std::string(node.at("content").string())};
}

// A field of one character.
std::string read_character(const JsonNode& node) {
  const std::string_view text = node.string();
  if (text.empty() || first_utf8_unit(text).length_bytes != text.size())
    node.fail(fmt::format("must be one character, is {}", node.text()));
  return std::string(text);
}

void read_normalizer(const JsonNode& node, std::vector<NormalizerStep>& steps) {
  const JsonNode type = node.at("type");
  const std::string_view name = type.string();
  if (name == "Sequence") {
    for (const JsonNode& part : node.at("normalizers").elements()) read_normalizer(part, steps);
  } else if (name == "Prepend") {
    steps.emplace_back(PrependStep{std::string(node.at("prepend").string())});
  } else if (name == "Replace") {
    steps.emplace_back(read_replace(node));
  } else if (name == "Lowercase") {
    steps.emplace_back(LowercaseStep{});
  } else if (name == "StripAccents") {
    steps.emplace_back(StripAccentsStep{});
  } else if (name == "Strip") {
    steps.emplace_back(
        StripStep{.left = node.at("strip_left").boolean(), .right = node.at("strip_right").boolean()});
  } else if (name == "NFC") {
    steps.emplace_back(NormalForm::kNfc);
  } else if (name == "NFKC") {
    steps.emplace_back(NormalForm::kNfkc);
  } else if (name == "NFD") {
    steps.emplace_back(NormalForm::kNfd);
  } else if (name == "NFKD") {
    steps.emplace_back(NormalForm::kNfkd);
  } else {
    type.unsupported("NFC, NFKC, NFD, NFKD, Prepend, Replace, Lowercase, StripAccents, Strip, Sequence");
  }
}

MetaspaceStep read_metaspace(const JsonNode& node) {
  constexpr std::array<std::pair<std::string_view, PrependScheme>, 3> kSchemes = {{
      {"always", PrependScheme::kAlways},
      {"first", PrependScheme::kFirst},
      {"never", PrependScheme::kNever},
  }};
  MetaspaceStep step;
  step.replacement = read_character(node.at("replacement"));
  const auto scheme = node.find("prepend_scheme");
  if (scheme) step.scheme = read_name(*scheme, kSchemes);
  // Files older than the scheme.
  const auto prefix = node.find("add_prefix_space");
  if (prefix && !prefix->boolean()) {
    if (scheme && step.scheme != PrependScheme::kNever)
      scheme->fail(fmt::format("is {} though add_prefix_space is false", scheme->text()));
    step.scheme = PrependScheme::kNever;
  }
  if (const auto split = node.find("split")) step.split = split->boolean();
  return step;
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
  } else if (name == "Metaspace") {
    steps.emplace_back(read_metaspace(node));
  } else {
    type.unsupported("ByteLevel, Metaspace, Split, Digits, Sequence");
  }
}

// The parts of a decoder that acts on spellings, in the only order that is read.
class DecoderReader {
 public:
  explicit DecoderReader(DecoderSpec& decoder) : decoder_(decoder) {}

  void read(const JsonNode& node) {
    const JsonNode type = node.at("type");
    const std::string_view name = type.string();
    if (name == "Sequence") {
      for (const JsonNode& part : node.at("decoders").elements()) read(part);
    } else if (name == "Replace" && stage_ <= kReplaces && !has_metaspace_) {
      decoder_.replacements.push_back(read_replace(node));
      stage_ = kReplaces;
    } else if (name == "Metaspace" && stage_ == kNothing) {
      read_metaspace_decoder(node);
    } else if (name == "ByteFallback" && stage_ < kBytes) {
      decoder_.byte_fallback = true;
      stage_ = kBytes;
    } else if (name == "Fuse" && stage_ <= kFused) {
      stage_ = kFused;
    } else if (name == "Strip" && stage_ == kFused) {
      read_strip(node);
    } else {
      type.unsupported(
          "Metaspace, or Replace, ByteFallback, Fuse and Strip in this order; ByteLevel where the "
          "pre_tokenizer "
          "ends with it");
    }
  }

 private:
  enum Stage : std::uint8_t { kNothing, kReplaces, kBytes, kFused, kStripped };

  void read_metaspace_decoder(const JsonNode& node) {
    const MetaspaceStep step = read_metaspace(node);
    decoder_.replacements.push_back({Regex::from_literal(step.replacement, "Metaspace"), " "});
    if (step.scheme != PrependScheme::kNever) decoder_.first_token_drops = step.replacement;
    has_metaspace_ = true;
    stage_ = kReplaces;
  }

  void read_strip(const JsonNode& node) {
    constexpr std::int64_t kMaxStrips = 1024;
    const JsonNode stop = node.at("stop");
    if (stop.integer() != 0) stop.unsupported("0");
    const JsonNode start = node.at("start");
    if (start.integer() < 0 || start.integer() > kMaxStrips)
      start.unsupported(fmt::format("0 to {}", kMaxStrips));
    decoder_.strips = read_character(node.at("content"));
    decoder_.strip_count = static_cast<std::size_t>(start.integer());
    stage_ = kStripped;
  }

  DecoderSpec& decoder_;
  Stage stage_ = kNothing;
  bool has_metaspace_ = false;
};

void read_byte_level_decoder(const JsonNode& node, DecoderSpec& decoder) {
  const JsonNode type = node.at("type");
  if (type.string() == "ByteLevel") {
    decoder.byte_level = true;
    return;
  }
  if (type.string() != "Sequence") type.unsupported("ByteLevel, as the pre_tokenizer ends with it");
  const std::vector<JsonNode> parts = node.at("decoders").elements();
  if (parts.size() != 1) node.unsupported("ByteLevel alone");
  read_byte_level_decoder(parts.front(), decoder);
}

}  // namespace

void read_text_steps(const JsonNode& root, TokenizerSpec& spec) {
  if (const auto normalizer = root.find("normalizer")) read_normalizer(*normalizer, spec.normalizer);
  if (const auto pre_tokenizer = root.find("pre_tokenizer"))
    read_pre_tokenizer(*pre_tokenizer, spec.pre_tokenizer);
  spec.bpe.byte_level =
      !spec.pre_tokenizer.empty() && std::holds_alternative<ByteLevelStep>(spec.pre_tokenizer.back());
  const auto decoder = root.find("decoder");
  if (!decoder) {
    throw Unsupported(fmt::format("tokenizer '{}'", root.origin()),
                      "decoder = null; supported: ByteLevel, Metaspace, Sequence");
  }
  if (spec.bpe.byte_level) {
    read_byte_level_decoder(*decoder, spec.decoder);
  } else {
    DecoderReader(spec.decoder).read(*decoder);
  }
}

}  // namespace metrale::engine
