// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/engine/tokenizer.h>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/spec.h"
#include "engine/tokenizer/tokenizer_config.h"
#include "engine/tokenizer/utf8.h"
#include "engine/tokenizer/vocabulary.h"

namespace metrale::engine {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{512} << 20;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

// Added tokens that are looked for in the raw text, or those in the normalised text.
std::vector<AddedToken> added_tokens_of(const TokenizerSpec& spec, bool normalized,
                                        const Normalizer& normalizer) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && !normalizer.keeps(token.content)) token.content = normalizer.apply(token.content);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

struct TokenizerParts {
  explicit TokenizerParts(TokenizerSpec&& spec)
      : vocabulary(spec),
        normalizer(std::move(spec.normalizer)),
        raw_added(added_tokens_of(spec, false, normalizer)),
        normalized_added(added_tokens_of(spec, true, normalizer)),
        bpe(spec, vocabulary),
        prefix(std::move(spec.prefix)),
        suffix(std::move(spec.suffix)),
        pre_tokenizer(std::move(spec.pre_tokenizer)),
        strips(std::move(spec.decoder.strips)),
        strip_count(spec.decoder.strip_count) {}

  Vocabulary vocabulary;
  Normalizer normalizer;
  AddedTokenFinder raw_added;
  AddedTokenFinder normalized_added;
  Bpe bpe;
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  PreTokenizer pre_tokenizer;
  std::string strips;
  std::size_t strip_count;
};

namespace {

// One call of encode: raw text to added tokens and text between, text to valid stretches and invalid bytes, a
// stretch to normalised added tokens and pieces, a piece to ids.
class Encoding {
 public:
  Encoding(const TokenizerParts& parts, EncodeOptions options) : parts_(parts), options_(options) {}

  std::vector<TokenId> run(std::string_view text) {
    if (options_.add_special_tokens) ids_ = parts_.prefix;
    std::vector<Segment> segments;
    whole_ = text;
    parts_.raw_added.find(text, {options_.parse_special, options_.plain, 0}, segments);
    for (const Segment& segment : segments) {
      if (segment.id) {
        ids_.push_back(*segment.id);
      } else {
        any_bytes(segment.text,
                  segment.text.data() == text.data() ? TextPlace::kStart : TextPlace::kAfterToken);
      }
    }
    if (options_.add_special_tokens) ids_.insert(ids_.end(), parts_.suffix.begin(), parts_.suffix.end());
    return std::move(ids_);
  }

 private:
  void any_bytes(std::string_view bytes, TextPlace place) {
    while (!bytes.empty()) {
      const std::size_t valid = valid_utf8_prefix(bytes);
      if (valid != 0) {
        stretch(bytes.substr(0, valid), place);
      } else {
        parts_.bpe.encode(bytes.substr(0, 1), bpe_, ids_);
      }
      bytes.remove_prefix(std::max<std::size_t>(valid, 1));
      place = TextPlace::kContinues;
    }
  }

  void stretch(std::string_view text, TextPlace place) {
    std::string normalized;
    SpecialRules rules{options_.parse_special, options_.plain,
                       static_cast<std::size_t>(text.data() - whole_.data())};
    if (!parts_.normalizer.keeps(text)) {
      // Places are lost here, so special tokens of the normalised text count in none that has plain parts.
      const std::optional<TextRange> plain = rules.plain_behind(0);
      rules.parse = rules.parse && (!plain || plain->begin >= text.size());
      rules.plain = {};
      normalized = parts_.normalizer.apply(text, place == TextPlace::kContinues);
      text = normalized;
    }
    parts_.normalized_added.find(text, rules, segments_);
    for (const Segment& segment : segments_) {
      if (segment.id) {
        ids_.push_back(*segment.id);
        continue;
      }
      const bool begins = segment.text.data() == text.data();
      parts_.pre_tokenizer.cut(segment.text, begins ? place : TextPlace::kAfterToken, cutting_);
      for (const std::string_view piece : cutting_.pieces()) parts_.bpe.encode(piece, bpe_, ids_);
    }
  }

  const TokenizerParts& parts_;
  EncodeOptions options_;
  std::string_view whole_;
  std::vector<TokenId> ids_;
  std::vector<Segment> segments_;
  PreTokenizer::Workspace cutting_;
  Bpe::Workspace bpe_;
};

}  // namespace

namespace {

std::vector<TokenId> ids_of_frame(const TokenizerSpec& spec, const std::optional<std::string>& token,
                                  const char* name, const std::string& config_path) {
  if (!token) return {};
  const auto entry = std::find(spec.spellings.begin(), spec.spellings.end(), *token);
  if (entry == spec.spellings.end()) {
    throw FormatError(
        config_path, 0,
        fmt::format("asks for the {} \"{}\" around every text, which tokenizer.json does not have", name,
                    *token));
  }
  return {static_cast<TokenId>(entry - spec.spellings.begin())};
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) noexcept : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& path) {
  TokenizerSpec spec = parse_tokenizer_json(read_text_file(path, kMaxFileBytes), path);
  const std::string config_path =
      (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  if (const auto frame = read_tokenizer_config(config_path).frame()) {
    spec.prefix = ids_of_frame(spec, frame->bos, "bos_token", config_path);
    spec.suffix = ids_of_frame(spec, frame->eos, "eos_token", config_path);
  }
  return Tokenizer(std::make_unique<const TokenizerParts>(std::move(spec)));
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& origin) {
  return Tokenizer(std::make_unique<const TokenizerParts>(parse_tokenizer_json(json, origin)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > kMaxTextBytes) {
    throw InvalidArgument(fmt::format("cannot encode a text of {} bytes: {} at most, encode it in parts",
                                      text.size(), kMaxTextBytes));
  }
  return Encoding(*parts_, options).run(text);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  parts_->vocabulary.check(id);
  return parts_->vocabulary.bytes(id);
}

std::string_view Tokenizer::token_spelling(TokenId id) const {
  parts_->vocabulary.check(id);
  return parts_->vocabulary.spelling(id);
}

std::string Tokenizer::first_token_bytes(TokenId id) const {
  parts_->vocabulary.check(id);
  return parts_->vocabulary.first_bytes(id);
}

std::size_t Tokenizer::strip_count() const noexcept {
  return parts_->strip_count;
}

std::size_t Tokenizer::strip_start(std::string& text, std::size_t count) const {
  std::size_t done = 0;
  std::size_t at = 0;
  for (; done < count && std::string_view(text).substr(at).starts_with(parts_->strips); ++done)
    at += parts_->strips.size();
  text.erase(0, at);
  return text.empty() ? count - done : 0;
}

std::optional<TokenId> Tokenizer::token_id(std::string_view spelling) const {
  return parts_->vocabulary.find(spelling);
}

bool Tokenizer::is_special(TokenId id) const {
  parts_->vocabulary.check(id);
  return parts_->vocabulary.is_special(id);
}

std::size_t Tokenizer::vocab_size() const noexcept {
  return parts_->vocabulary.size();
}

}  // namespace metrale::engine
