// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <metrale/prefix/prefix_cache.h>

namespace metrale::prefix {

void Match::swap(Match& other) noexcept {
  std::swap(cache_, other.cache_);
  std::swap(block_size_, other.block_size_);
  std::swap(end_, other.end_);
  std::swap(tail_end_, other.tail_end_);
  blocks_.swap(other.blocks_);
  tail_.swap(other.tail_);
}

void Match::tail_copied() noexcept {
  if (tail_end_ != kNothing) cache_->do_unpin(std::exchange(tail_end_, kNothing));
  tail_.reset();
}

void Match::release() noexcept {
  tail_copied();
  if (end_ != kNothing) cache_->do_unpin(std::exchange(end_, kNothing));
  blocks_.clear();
}

Match Match::fork() const {
  Match copy;
  if (end_ == kNothing) return copy;
  copy.blocks_ = blocks_;
  copy.block_size_ = block_size_;
  copy.cache_ = cache_;
  cache_->do_pin(end_);
  copy.end_ = end_;
  return copy;
}

InsertAcquired Reservation::publish(std::size_t ready_tokens) {
  expects(is_open(), "prefix reservation: publish after it was committed, rolled back or moved from");
  if (ready_tokens > tokens_.size()) {
    throw InvalidArgument(fmt::format("prefix reservation: {} tokens ready, but only {} were reserved",
                                      ready_tokens, tokens_.size()));
  }
  const std::size_t full = ready_tokens / cache_->block_size();
  return insert(full * cache_->block_size(), full);
}

InsertAcquired Reservation::commit() {
  expects(is_open(), "prefix reservation: commit after it was committed, rolled back or moved from");
  InsertAcquired acquired = insert(tokens_.size(), blocks_.size());
  roll_back();
  return acquired;
}

InsertAcquired Reservation::insert(std::size_t num_tokens, std::size_t num_blocks) {
  Match* pins =
      num_tokens >= pins_.matched_tokens() ? &pins_ : nullptr;  // never give up what is pinned already
  return cache_->insert({tenant_salt_, adapter_}, std::span(tokens_).first(num_tokens),
                        std::span(blocks_).first(num_blocks), pins, retention_);
}

void Reservation::roll_back() noexcept {
  pins_.release();
  cache_.reset();
}

void PrefixCache::check_blocks(std::span<const TokenId> tokens, std::span<const BlockId> blocks,
                               const Retention& retention) const {
  const std::size_t full = tokens.size() / block_size_;
  const bool partial = tokens.size() % block_size_ != 0;
  if (blocks.size() != full && !(partial && blocks.size() == full + 1)) {
    throw InvalidArgument(fmt::format(
        "prefix cache: {} tokens in blocks of {} need {}{} blocks, {} were given", tokens.size(), block_size_,
        full, partial ? fmt::format(" or {}", full + 1) : std::string(), blocks.size()));
  }
  if (retention.priority >= kPriorityClasses) {
    throw InvalidArgument(
        fmt::format("prefix cache: priority {} is not below {}", retention.priority, kPriorityClasses));
  }
  expects(!retention.ttl || *retention.ttl > Nanoseconds::zero(),
          "prefix cache: a time to live must be positive");
}

Match PrefixCache::lookup(const PrefixKey& key, std::span<const TokenId> tokens) {
  return do_lookup(key, tokens, LookupKind::kCounted);
}

Match PrefixCache::pin(const PrefixKey& key, std::span<const TokenId> tokens) {
  return do_lookup(key, tokens, LookupKind::kPinOnly);
}

std::size_t PrefixCache::peek(const PrefixKey& key, std::span<const TokenId> tokens) const {
  return do_peek(key, tokens);
}

InsertAcquired PrefixCache::insert(const PrefixKey& key, std::span<const TokenId> tokens,
                                   std::span<const BlockId> blocks, Match* matched,
                                   const Retention& retention) {
  check_blocks(tokens, blocks, retention);
  expects(matched == nullptr || matched->cache_ == nullptr || matched->cache_ == this,
          "prefix cache: insert with a match of another cache");
  return do_insert(key, tokens, blocks, matched, retention);
}

Reservation PrefixCache::reserve(const PrefixKey& key, std::span<const TokenId> tokens,
                                 std::span<const BlockId> blocks, const Retention& retention) {
  check_blocks(tokens, blocks, retention);
  Reservation reservation;
  reservation.tenant_salt_ = key.tenant_salt;
  reservation.adapter_ = key.adapter;
  reservation.tokens_.assign(tokens.begin(), tokens.end());
  reservation.blocks_.assign(blocks.begin(), blocks.end());
  reservation.retention_ = retention;
  reservation.pins_ = pin(key, tokens);
  reservation.cache_.reset(this);
  return reservation;
}

}  // namespace metrale::prefix
