// SPDX-License-Identifier: Apache-2.0
// What goes into a prefix cache and what comes out beside the match: keys, retention, accounts, counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <metrale/base/clock.h>
#include <metrale/base/ids.h>

namespace metrale::prefix {

using TokenId = std::int32_t;

// Whose prefixes: nothing is shared between two keys. The parts are tagged and length-prefixed before they
// are compared, so ("ab", "c") is not ("a", "bc") and a salt is never an adapter. Views: they live as long as
// the call.
struct PrefixKey {
  std::string_view tenant_salt{};
  std::string_view adapter{};
};

inline constexpr std::uint8_t kPriorityClasses = 8;
inline constexpr std::uint8_t kDefaultPriority = 3;

// How long a published prefix is worth keeping. A prefix holds the most that anyone published it with, and so
// does everything before it: it cannot live without that.
struct Retention {
  std::uint8_t priority = kDefaultPriority;  // below kPriorityClasses; lower classes are evicted first
  std::optional<Nanoseconds> ttl{};          // counted from the publication; none: no end
};

// A block that the caller has and the cache has already, for the same tokens. `given` stays the caller's
// alone.
struct DuplicateBlock {
  std::uint32_t index = 0;  // in the caller's block table
  BlockId given;
  BlockId cached;

  friend bool operator==(const DuplicateBlock&, const DuplicateBlock&) = default;
};

// What an insert did to references. Blocks of the caller's table that are in none of the lists were the
// cache's own already (they came from a match).
struct InsertAcquired {
  std::vector<BlockId> adopted;            // the cache has one reference to each now: take it for the cache
  std::vector<DuplicateBlock> duplicates;  // the cache took nothing
  std::vector<BlockId>
      dropped;  // the cache's reference to each ended (a tail that was replaced): give it back
  std::size_t cached_tokens = 0;  // of the given ones, how many lie in full cached blocks now
};

// Since the cache was made. A lookup hits where at least one full block matches.
struct PrefixCounters {
  std::uint64_t lookups = 0;
  std::uint64_t hits = 0;
  std::uint64_t lookup_tokens = 0;
  std::uint64_t hit_tokens = 0;   // in full blocks
  std::uint64_t tail_hits = 0;    // lookups that found a block to copy the start of
  std::uint64_t tail_tokens = 0;  // what those shared
  std::uint64_t inserts = 0;
  std::uint64_t inserted_blocks = 0;  // adopted, tails too
  std::uint64_t duplicate_blocks = 0;
  std::uint64_t dropped_blocks = 0;
  std::uint64_t evicted_blocks = 0;
  std::uint64_t expired_blocks = 0;  // of the evicted ones, those past their time

  friend bool operator==(const PrefixCounters&, const PrefixCounters&) = default;
};

}  // namespace metrale::prefix
