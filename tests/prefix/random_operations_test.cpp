// SPDX-License-Identifier: Apache-2.0
// Random operations of many sequences on a small pool, each step against the slow model.
#include <array>
#include <cstdio>
#include <list>
#include <random>
#include <string>

#include "prefix/slow_model.h"
#include "prefix/support.h"

namespace metrale::prefix {
namespace {

constexpr std::array<PrefixKey, 4> kKeys{{{"one", ""}, {"two", ""}, {"one", "lora"}, {"", "one"}}};

struct Shape {
  std::uint32_t block_size;
  int letters;
  std::uint32_t num_blocks;
  std::uint64_t (*hash)(std::span<const std::byte>, std::uint64_t);
};

std::uint64_t two_bits(std::span<const std::byte> bytes, std::uint64_t seed) {
  return hash64(bytes, seed) & 3;
}

// A request: its block table, and a match or a reservation.
struct Sequence {
  std::size_t key = 0;
  Tokens tokens;
  std::vector<BlockId> table;
  Retention retention;
  Match match;
  Reservation reservation;
  ModelPin pin;
};

class World {
 public:
  World(const Shape& shape, std::uint64_t seed)
      : shape_(shape),
        random_(seed),
        tree_({.block_size = shape.block_size, .num_blocks = shape.num_blocks, .hash = shape.hash}, clock_),
        model_(shape.block_size),
        references_(shape.num_blocks, 0),
        contents_(shape.num_blocks) {}

  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    while (!sequences_.empty()) finish(sequences_.begin());
  }

  void step() {
    const std::uint64_t choice = below(100);
    const auto chosen = sequences_.empty() ? sequences_.end()
                                           : std::next(sequences_.begin(), below_signed(sequences_.size()));
    if (choice < 30 || sequences_.empty()) {
      if (sequences_.size() < 12) start();
    } else if (choice < 50) {
      publish(*chosen, below(chosen->tokens.size() + 1));
    } else if (choice < 65) {
      commit(*chosen);
      finish(chosen);
    } else if (choice < 73) {
      finish(chosen);  // cancelled
    } else if (choice < 79) {
      fork(*chosen);
    } else if (choice < 84) {
      copy_tail(*chosen);
    } else if (choice < 88) {
      pin();
    } else if (choice < 92) {
      peek();
    } else if (choice < 97) {
      evict(below(6));
    } else {
      const auto by = static_cast<std::int64_t>(below(4));
      clock_.advance(Nanoseconds(by));
      model_.now += by;
    }
  }

  void check() {
    ASSERT_EQ(tree_.check_invariants(), "");
    ASSERT_EQ(tree_.cached_blocks(), model_.entries.size());
    ASSERT_EQ(tree_.evictable_blocks(), model_.num_evictable());
    std::vector<bool> cached(shape_.num_blocks);
    for (const SlowModel::Entry& entry : model_.entries) {
      cached[entry.block.value()] = true;
      ASSERT_EQ(contents_[entry.block.value()], std::pair(entry.key, entry.tokens));
    }
    // Held, cached or free, and never free while somebody refers to it.
    std::vector<int> references(shape_.num_blocks, 0);
    for (const Sequence& sequence : sequences_) {
      for (const BlockId block : sequence.table) ++references[block.value()];
    }
    for (std::uint32_t block = 0; block < shape_.num_blocks; ++block) {
      ASSERT_EQ(tree_.contains_block(BlockId(block)), cached[block]);
      ASSERT_EQ(references_[block], references[block] + (cached[block] ? 1 : 0)) << "block " << block;
    }
  }

  void drain() {
    while (!sequences_.empty()) finish(sequences_.begin());
    ASSERT_EQ(tree_.evictable_blocks(), tree_.cached_blocks());
    evict(shape_.num_blocks);
    check();
    ASSERT_EQ(tree_.cached_blocks(), 0U);
  }
  [[nodiscard]] PrefixCounters counters() const { return tree_.counters(); }

 private:
  using Place = std::list<Sequence>::iterator;

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  std::ptrdiff_t below_signed(std::size_t limit) { return static_cast<std::ptrdiff_t>(below(limit)); }

  // Often the start of an earlier prompt and then something else.
  Tokens prompt() {
    Tokens tokens;
    if (!prompts_.empty() && below(4) != 0) {
      tokens = prompts_[below(prompts_.size())];
      tokens.resize(below(tokens.size() + 1));
    }
    const std::size_t more = below(std::uint64_t{4} * shape_.block_size);
    for (std::size_t i = 0; i < more; ++i)
      tokens.push_back(static_cast<TokenId>(below(static_cast<std::uint64_t>(shape_.letters))));
    if (prompts_.size() < 16)
      prompts_.push_back(tokens);
    else
      prompts_[below(16)] = tokens;
    return tokens;
  }
  Retention retention() {
    Retention result{.priority = static_cast<std::uint8_t>(below(3))};
    if (below(3) == 0) result.ttl = Nanoseconds(1 + static_cast<std::int64_t>(below(40)));
    return result;
  }

  void take(BlockId block) { ++references_[block.value()]; }
  void give(BlockId block) {
    ASSERT_GT(references_[block.value()], 0) << "block " << block.value();
    --references_[block.value()];
  }
  std::size_t num_free() const {
    return static_cast<std::size_t>(std::count(references_.begin(), references_.end(), 0));
  }
  BlockId alloc(std::size_t key, const Tokens& content) {
    const auto block = static_cast<std::uint32_t>(std::find(references_.begin(), references_.end(), 0) -
                                                  references_.begin());
    contents_[block] = {key, content};
    take(BlockId(block));
    return BlockId(block);
  }

  void start() {
    Sequence& sequence = sequences_.emplace_back();
    sequence.key = below(kKeys.size());
    sequence.tokens = prompt();
    sequence.retention = retention();
    const std::vector<BlockId> expected = model_.match(sequence.key, sequence.tokens);
    sequence.match = tree_.lookup(kKeys[sequence.key], sequence.tokens);
    ASSERT_EQ(blocks_of(sequence.match), expected);
    sequence.pin = {sequence.key, SlowModel::first(sequence.tokens, sequence.match.matched_tokens()), {}};
    check_tail(sequence);
    model_.add_pin(&sequence.pin);
    sequence.table = expected;
    for (const BlockId block : expected) {
      ASSERT_EQ(contents_[block.value()].first, sequence.key);
      take(block);
    }
    const std::size_t size = shape_.block_size;
    const std::size_t full = sequence.tokens.size() / size;
    const std::size_t wanted = full + (sequence.tokens.size() % size != 0 && below(2) == 0 ? 1 : 0);
    const std::size_t missing = wanted - expected.size();
    if (num_free() < missing) evict(missing - num_free());
    if (num_free() < missing) return finish(std::prev(sequences_.end()));
    while (sequence.table.size() < wanted) {
      const std::size_t end = std::min(sequence.tokens.size(), (sequence.table.size() + 1) * size);
      sequence.table.push_back(alloc(sequence.key, SlowModel::first(sequence.tokens, end)));
    }
    if (wanted == full) sequence.tokens.resize(full * size);
    if (below(2) == 0) reserve(sequence);
  }

  void check_tail(Sequence& sequence) {
    const std::size_t depth = sequence.pin.end.size();
    const auto children = model_.children(sequence.key, sequence.tokens, depth);
    std::uint32_t best = 0;
    for (const SlowModel::Entry* child : children) {
      if (!model_.is_dead(*child)) best = std::max(best, SlowModel::shared(*child, sequence.tokens, depth));
    }
    const std::optional<SharedTail>& tail = sequence.match.tail();
    if (children.size() <= 8) {
      ASSERT_EQ(tail ? tail->tokens : 0, best);
    }
    if (!tail) return;
    const auto source = std::find_if(children.begin(), children.end(), [&](const SlowModel::Entry* child) {
      return child->block == tail->block;
    });
    ASSERT_NE(source, children.end());
    ASSERT_FALSE(model_.is_dead(**source));
    ASSERT_EQ(SlowModel::shared(**source, sequence.tokens, depth), tail->tokens);
    ASSERT_LT(tail->tokens, shape_.block_size);
    sequence.pin.tail_end = (*source)->tokens;
  }

  // Changes from the match to a reservation.
  void reserve(Sequence& sequence) {
    sequence.reservation =
        tree_.reserve(kKeys[sequence.key], sequence.tokens, sequence.table, sequence.retention);
    const std::size_t matched = model_.match(sequence.key, sequence.tokens).size();
    model_.change_pins([&] {
      sequence.match.release();
      sequence.pin = {sequence.key, SlowModel::first(sequence.tokens, matched * shape_.block_size), {}};
    });
  }

  void settle(Sequence& sequence, std::size_t num_tokens, std::size_t num_blocks,
              const InsertAcquired& acquired) {
    const std::vector<BlockId> table(sequence.table.begin(),
                                     sequence.table.begin() + static_cast<std::ptrdiff_t>(num_blocks));
    model_.insert(sequence.key, SlowModel::first(sequence.tokens, num_tokens), table, sequence.retention,
                  acquired);
    for (const BlockId block : acquired.adopted) take(block);
    for (const BlockId block : acquired.dropped) give(block);
  }

  void publish(Sequence& sequence, std::size_t ready) {
    if (sequence.table.empty()) return;
    const std::size_t full = ready / shape_.block_size;
    const std::size_t num_tokens = full * shape_.block_size;
    if (sequence.reservation.is_open()) {
      settle(sequence, num_tokens, full, sequence.reservation.publish(ready));
    } else {
      Match* match = num_tokens >= sequence.pin.end.size() && below(2) == 0 ? &sequence.match : nullptr;
      settle(sequence, num_tokens, full,
             tree_.insert(kKeys[sequence.key], std::span(sequence.tokens).first(num_tokens),
                          std::span(sequence.table).first(full), match, sequence.retention));
      if (match == nullptr) return;
      ASSERT_EQ(match->matched_tokens(), num_tokens);
    }
    if (num_tokens > sequence.pin.end.size())
      sequence.pin.end = SlowModel::first(sequence.tokens, num_tokens);
  }

  void commit(Sequence& sequence) {
    if (sequence.table.empty()) return;
    if (sequence.reservation.is_open()) {
      const InsertAcquired acquired = sequence.reservation.commit();
      settle(sequence, sequence.tokens.size(), sequence.table.size(), acquired);
      const std::size_t full = sequence.tokens.size() / shape_.block_size;
      sequence.pin.end = SlowModel::first(sequence.tokens, full * shape_.block_size);
      model_.change_pins([&] { sequence.pin = {sequence.key, {}, {}}; });
    } else {
      settle(sequence, sequence.tokens.size(), sequence.table.size(),
             tree_.insert(kKeys[sequence.key], sequence.tokens, sequence.table, nullptr, sequence.retention));
    }
  }

  void finish(Place place) {
    place->match.release();
    place->reservation.roll_back();
    model_.remove_pin(&place->pin);
    for (const BlockId block : place->table) give(block);
    sequences_.erase(place);
  }

  void fork(Sequence& parent) {
    if (parent.reservation.is_open() || sequences_.size() >= 12) return;
    Sequence& child = sequences_.emplace_back();
    child.key = parent.key;
    child.tokens = parent.pin.end;
    child.retention = parent.retention;
    child.match = parent.match.fork();
    ASSERT_EQ(blocks_of(child.match), blocks_of(parent.match));
    child.table = blocks_of(child.match);
    for (const BlockId block : child.table) take(block);
    child.pin = {child.key, child.tokens, {}};
    model_.add_pin(&child.pin);
  }

  void copy_tail(Sequence& sequence) {
    model_.change_pins([&] {
      sequence.match.tail_copied();
      sequence.pin.tail_end.clear();
    });
  }

  void pin() {
    if (sequences_.size() >= 12) return;
    Sequence& sequence = sequences_.emplace_back();
    sequence.key = below(kKeys.size());
    const Tokens tokens = prompt();
    const std::vector<BlockId> expected = model_.match(sequence.key, tokens);
    sequence.match = tree_.pin(kKeys[sequence.key], tokens);
    ASSERT_EQ(blocks_of(sequence.match), expected);
    sequence.pin = {sequence.key, SlowModel::first(tokens, sequence.match.matched_tokens()), {}};
    model_.add_pin(&sequence.pin);
  }

  void peek() {
    const std::size_t key = below(kKeys.size());
    const Tokens tokens = prompt();
    ASSERT_EQ(tree_.peek(kKeys[key], tokens), model_.match(key, tokens).size() * shape_.block_size);
  }

  void evict(std::size_t count) {
    const std::size_t expected = std::min(count, model_.num_evictable());
    const std::vector<BlockId> evicted = tree_.evict(count);
    ASSERT_EQ(evicted.size(), expected);
    for (const BlockId block : evicted) {
      model_.evict(block);
      give(block);
    }
  }

  Shape shape_;
  std::mt19937_64 random_;
  ManualClock clock_;
  RadixTree tree_;
  SlowModel model_;
  std::vector<int> references_;                           // of the pool
  std::vector<std::pair<std::size_t, Tokens>> contents_;  // what was computed into each block
  std::list<Sequence> sequences_;
  std::vector<Tokens> prompts_;
};

void run(const Shape& shape, int operations) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  World world(shape, seed);
  for (int i = 0; i < operations; ++i) {
    world.step();
    world.check();
    if (testing::Test::HasFailure()) {
      FAIL() << "at operation " << i;
    }
  }
  const PrefixCounters counters = world.counters();
  EXPECT_GT(counters.hits, 0U);
  EXPECT_GT(counters.tail_hits, 0U);
  EXPECT_GT(counters.evicted_blocks, 0U);
  EXPECT_GT(counters.expired_blocks, 0U);
  EXPECT_GT(counters.duplicate_blocks, 0U);
  EXPECT_GT(counters.dropped_blocks, 0U);
  world.drain();
}

TEST(RandomOperations, SmallBlocksDoWhatTheSlowModelDoes) {
  run({.block_size = 2, .letters = 2, .num_blocks = 48, .hash = &hash64}, 400'000);
}

TEST(RandomOperations, LargerBlocksDoWhatTheSlowModelDoes) {
  run({.block_size = 4, .letters = 2, .num_blocks = 40, .hash = &hash64}, 300'000);
}

TEST(RandomOperations, CollidingHashesChangeNothing) {
  run({.block_size = 2, .letters = 3, .num_blocks = 32, .hash = &two_bits}, 300'000);
}

}  // namespace
}  // namespace metrale::prefix
