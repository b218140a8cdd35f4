// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include <metrale/base/error.h>

#include "engine/tokenizer/byte_alphabet.h"

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

ByteBpe::ByteBpe(const TokenizerSpec& spec, const Vocabulary& vocabulary)
    : merges_(spec.bpe.merges), unknown_(spec.bpe.unknown), fuse_unknown_(spec.bpe.fuse_unknown) {
  results_.reserve(spec.bpe.merges.size());
  for (const Merge& merge : spec.bpe.merges) results_.push_back(merge.result);
  byte_tokens_.fill(kNoToken);
  for (std::size_t i = 0; i < spec.spellings.size(); ++i) {
    if (!spec.in_model[i]) continue;
    const std::optional<std::string> bytes = bytes_of_spelling(spec.spellings[i]);
    if (!bytes) continue;
    const auto id = static_cast<TokenId>(i);
    if (bytes->size() == 1) byte_tokens_[static_cast<unsigned char>(bytes->front())] = id;
    if (spec.bpe.ignore_merges) whole_pieces_.emplace(vocabulary.bytes(id), id);
  }
}

void ByteBpe::begin(std::string_view piece, Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  symbols.clear();
  bool after_unknown = false;
  for (const char c : piece) {
    const TokenId byte_token = byte_tokens_[static_cast<unsigned char>(c)];
    const bool is_unknown = byte_token == kNoToken;
    if (is_unknown && (!unknown_ || (fuse_unknown_ && after_unknown))) continue;
    after_unknown = is_unknown;
    const auto at = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back(
        {.id = is_unknown ? *unknown_ : byte_token, .previous = at == 0 ? kEnd : at - 1, .next = at + 1});
  }
  if (!symbols.empty()) symbols.back().next = kEnd;
}

std::optional<ByteBpe::Workspace::Candidate> ByteBpe::candidate_at(std::uint32_t position,
                                                                   const Workspace& workspace) const {
  const auto& left = workspace.symbols_[position];
  if (left.next == kEnd) return std::nullopt;
  const MergeTable::Entry* entry = merges_.find(left.id, workspace.symbols_[left.next].id);
  if (entry == nullptr) return std::nullopt;
  return Workspace::Candidate{entry->rank} << 32 | position;
}

void ByteBpe::merge_all(Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  // The pairs of bytes are sorted once and read in order; only later pairs need a heap, which then stays
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

void ByteBpe::encode(std::string_view piece, Workspace& workspace, std::vector<TokenId>& ids) const {
  if (piece.size() > kMaxPieceBytes) throw InvalidArgument("a piece of the text is longer than 2 GiB");
  if (!whole_pieces_.empty()) {
    if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  begin(piece, workspace);
  merge_all(workspace);
  for (const auto& symbol : workspace.symbols_) {
    if (!symbol.merged_away) ids.push_back(symbol.id);
  }
}

}  // namespace metrale::engine
