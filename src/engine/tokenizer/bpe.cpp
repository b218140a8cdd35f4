// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include <metrale/base/error.h>

#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/utf8.h"

namespace metrale::engine {
namespace {

std::uint64_t pair_of(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::size_t kMaxPieceBytes = std::size_t{1} << 31;

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges)
    : slots_(std::bit_ceil(std::max<std::size_t>(2 * merges.size(), 2))) {
  std::uint32_t rank = 0;
  for (const Merge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t at = first_slot(pair);
    while (slots_[at].entry.result != kNone && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {pair, {rank++, merge.result}};
  }
}

std::size_t MergeTable::first_slot(std::uint64_t pair) const {
  pair = (pair ^ (pair >> 32)) * 0x9E3779B97F4A7C15U;
  pair = (pair ^ (pair >> 29)) * 0xBF58476D1CE4E5B9U;
  return (pair >> 32) & (slots_.size() - 1);
}

const MergeTable::Entry* MergeTable::find(TokenId left, TokenId right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t at = first_slot(pair);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.entry.result == kNone) return nullptr;
    if (slot.pair == pair) return &slot.entry;
  }
}

Bpe::Bpe(const TokenizerSpec& spec, const Vocabulary& vocabulary)
    : byte_level_(spec.bpe.byte_level),
      merges_(spec.bpe.merges),
      unknown_(spec.bpe.unknown),
      fuse_unknown_(spec.bpe.fuse_unknown) {
  results_.reserve(spec.bpe.merges.size());
  for (const Merge& merge : spec.bpe.merges) results_.push_back(merge.result);
  byte_tokens_.fill(kNoToken);
  index_tokens(spec, vocabulary);
}

void Bpe::index_tokens(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  for (std::size_t i = 0; i < spec.spellings.size(); ++i) {
    if (!spec.in_model[i]) continue;
    const auto id = static_cast<TokenId>(i);
    const std::string_view spelling = vocabulary.spelling(id);
    if (byte_level_) {
      const std::optional<std::string> bytes = bytes_of_spelling(spelling);
      if (!bytes) continue;
      if (bytes->size() == 1) byte_tokens_[static_cast<unsigned char>(bytes->front())] = id;
      if (spec.bpe.ignore_merges) whole_pieces_.emplace(vocabulary.bytes(id), id);
      continue;
    }
    if (spec.bpe.ignore_merges) whole_pieces_.emplace(spelling, id);
    if (spelling.empty()) continue;
    const Utf8Unit unit = first_utf8_unit(spelling);
    if (unit.length_bytes == spelling.size()) character_tokens_.emplace(unit.code_point, id);
    // The package looks for upper-case digits only.
    const bool is_upper =
        std::none_of(spelling.begin(), spelling.end(), [](char c) { return c >= 'a' && c <= 'f'; });
    const auto byte = byte_of_fallback_spelling(spelling);
    if (spec.bpe.byte_fallback && byte && is_upper) byte_tokens_[*byte] = id;
  }
}

void Bpe::Workspace::push(TokenId id) {
  const auto at = static_cast<std::uint32_t>(symbols_.size());
  symbols_.push_back({.id = id, .previous = at == 0 ? kEnd : at - 1, .next = at + 1});
}

void Bpe::begin_bytes(std::string_view piece, Workspace& workspace) const {
  bool after_unknown = false;
  for (const char c : piece) {
    const TokenId byte_token = byte_tokens_[static_cast<unsigned char>(c)];
    const bool is_unknown = byte_token == kNoToken;
    if (is_unknown && (!unknown_ || (fuse_unknown_ && after_unknown))) continue;
    after_unknown = is_unknown;
    workspace.push(is_unknown ? *unknown_ : byte_token);
  }
}

bool Bpe::has_byte_tokens(std::string_view bytes) const {
  return std::all_of(bytes.begin(), bytes.end(),
                     [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)] != kNoToken; });
}

void Bpe::begin_characters(std::string_view piece, Workspace& workspace) const {
  bool unknown_waits = false;
  const auto put_unknown = [&] {
    if (unknown_waits) workspace.push(*unknown_);
    unknown_waits = false;
  };
  while (!piece.empty()) {
    const Utf8Unit unit = first_utf8_unit(piece);
    const bool valid = unit.kind == Utf8Kind::kCharacter;
    const std::string_view bytes = piece.substr(0, valid ? unit.length_bytes : 1);
    piece.remove_prefix(bytes.size());
    const auto token = valid ? character_tokens_.find(unit.code_point) : character_tokens_.end();
    if (token != character_tokens_.end()) {
      put_unknown();
      workspace.push(token->second);
    } else if (has_byte_tokens(bytes)) {
      for (const char c : bytes) workspace.push(byte_tokens_[static_cast<unsigned char>(c)]);
    } else if (unknown_) {
      if (!fuse_unknown_) put_unknown();
      unknown_waits = true;
    }
  }
  put_unknown();
}

std::optional<Bpe::Workspace::Candidate> Bpe::candidate_at(std::uint32_t position,
                                                           const Workspace& workspace) const {
  const auto& left = workspace.symbols_[position];
  if (left.next == kEnd) return std::nullopt;
  const MergeTable::Entry* entry = merges_.find(left.id, workspace.symbols_[left.next].id);
  if (entry == nullptr) return std::nullopt;
  return Workspace::Candidate{entry->rank} << 32 | position;
}

void Bpe::merge_all(Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  // The pairs of units are sorted once and read in order; only later pairs need a heap, which then stays
  // small.
  auto& first = workspace.first_;
  auto& heap = workspace.heap_;
  first.clear();
  heap.clear();
  for (std::uint32_t at = 0; at < symbols.size(); ++at) {
    if (const auto candidate = candidate_at(at, workspace)) first.push_back(*candidate);
  }
  std::sort(first.begin(), first.end());
  const auto propose = [&](std::uint32_t position) {
    const auto candidate = candidate_at(position, workspace);
    if (!candidate) return;
    heap.push_back(*candidate);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  auto next_first = first.begin();
  while (next_first != first.end() || !heap.empty()) {
    const bool from_heap = next_first == first.end() || (!heap.empty() && heap.front() < *next_first);
    const Workspace::Candidate candidate = from_heap ? heap.front() : *next_first++;
    if (from_heap) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      heap.pop_back();
    }
    const auto position = static_cast<std::uint32_t>(candidate);
    const TokenId result = results_[candidate >> 32];
    auto& left = symbols[position];
    if (left.merged_away || left.next == kEnd) continue;
    auto& right = symbols[left.next];
    // Stale where an earlier merge changed the pair; a pair with the same result is as good as the proposed
    // one.
    const MergeTable::Entry* entry = merges_.find(left.id, right.id);
    if (entry == nullptr || entry->result != result) continue;
    left.id = result;
    left.next = right.next;
    right.merged_away = true;
    if (left.next != kEnd) symbols[left.next].previous = position;
    if (left.previous != kEnd) propose(left.previous);
    propose(position);
  }
}

void Bpe::encode(std::string_view piece, Workspace& workspace, std::vector<TokenId>& ids) const {
  if (piece.size() > kMaxPieceBytes) throw InvalidArgument("a piece of the text is longer than 2 GiB");
  if (!whole_pieces_.empty()) {
    if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  workspace.symbols_.clear();
  if (byte_level_) {
    begin_bytes(piece, workspace);
  } else {
    begin_characters(piece, workspace);
  }
  if (workspace.symbols_.empty()) return;
  workspace.symbols_.back().next = kEnd;
  merge_all(workspace);
  for (const auto& symbol : workspace.symbols_) {
    if (!symbol.merged_away) ids.push_back(symbol.id);
  }
}

}  // namespace metrale::engine
