// SPDX-License-Identifier: Apache-2.0
// The radix tree: matching and pinning a prompt of 8,192 tokens in blocks of 16, warm and among a million
// cached blocks that no processor cache holds, beside a chain of one hash a block as vLLM has it;
// publication, eviction and memory.
//
// bench-deps: prefix kv
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/hash.h>
#include <metrale/kv/block_pool.h>
#include <metrale/prefix/radix_tree.h>

#include "support/report.h"

namespace metrale::bench {
namespace {

using prefix::Match;
using prefix::PrefixKey;
using prefix::RadixTree;
using prefix::TokenId;
using Prompt = std::vector<TokenId>;

constexpr std::uint32_t kBlockSize = 16;
constexpr std::uint32_t kPromptBlocks = 512;
constexpr std::uint32_t kPromptTokens = kPromptBlocks * kBlockSize;
constexpr std::uint32_t kTurns = 16;
constexpr std::size_t kTorn = 64;         // prompts of which every block is an edge
constexpr std::uint32_t kPrompts = 1954;  // a million blocks
constexpr std::size_t kColdBytes = std::size_t{512} << 20;
constexpr unsigned kColdRuns = 61;
constexpr unsigned kWarmRuns = 2001;
constexpr PrefixKey kKey{"tenant", "adapter"};

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

// Pushes everything else out of the caches.
void make_cold() {
  static std::vector<std::uint64_t> memory(kColdBytes / sizeof(std::uint64_t), 1);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < memory.size(); i += 8) sum += memory[i]++;
  keep(sum);
}

std::vector<Prompt> random_prompts(std::size_t count) {
  std::mt19937_64 random(7);
  std::vector<Prompt> prompts(count, Prompt(kPromptTokens));
  for (Prompt& prompt : prompts) {
    for (TokenId& token : prompt) token = static_cast<TokenId>(random() % 128'000);
  }
  return prompts;
}

// A hash for each block over the hash before it and the block's tokens; a map from hash to block; a count of
// users for each block, and a queue of those that nobody uses. XXH3, though it gives no safety against forged
// prompts.
class HashChain {
 public:
  explicit HashChain(std::uint32_t num_blocks) : blocks_(num_blocks + 1), seam_(num_blocks) {
    blocks_[seam_] = {.before = seam_, .after = seam_};
  }

  void insert(const Prompt& prompt, std::uint32_t first_block) {
    std::uint64_t hash = 0;
    for (std::uint32_t i = 0; i < kPromptBlocks; ++i) {
      hash = next(hash, prompt, i);
      by_hash_.emplace(hash, first_block + i);
      enqueue(first_block + i);
    }
  }
  // The cached blocks of a prompt, each with one user more.
  std::vector<std::uint32_t> match(const Prompt& prompt) {
    std::vector<std::uint32_t> found;
    std::uint64_t hash = 0;
    for (std::uint32_t i = 0; i < kPromptBlocks; ++i) {
      hash = next(hash, prompt, i);
      const auto block = by_hash_.find(hash);
      if (block == by_hash_.end()) break;
      found.push_back(block->second);
    }
    for (const std::uint32_t block : found) {
      if (blocks_[block].users++ == 0) dequeue(block);
    }
    return found;
  }
  void release(const std::vector<std::uint32_t>& found) {
    for (auto block = found.rbegin(); block != found.rend(); ++block) {
      if (--blocks_[*block].users == 0) enqueue(*block);
    }
  }

 private:
  struct Block {
    std::uint32_t users = 0;
    std::uint32_t before = 0;
    std::uint32_t after = 0;
  };
  static std::uint64_t next(std::uint64_t hash, const Prompt& prompt, std::uint32_t i) {
    return hash64(std::as_bytes(std::span(prompt).subspan(std::size_t{i} * kBlockSize, kBlockSize)), hash);
  }
  // The queue is a ring; its last entry is the seam.
  void enqueue(std::uint32_t block) {
    const std::uint32_t last = blocks_[seam_].before;
    blocks_[block].before = last;
    blocks_[block].after = seam_;
    blocks_[last].after = block;
    blocks_[seam_].before = block;
  }
  void dequeue(std::uint32_t block) {
    blocks_[blocks_[block].before].after = blocks_[block].after;
    blocks_[blocks_[block].after].before = blocks_[block].before;
  }

  std::vector<Block> blocks_;
  std::uint32_t seam_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_hash_;
};

std::vector<BlockId> table_from(std::uint32_t first) {
  std::vector<BlockId> table;
  for (std::uint32_t i = 0; i < kPromptBlocks; ++i) table.emplace_back(first + i);
  return table;
}

struct Cache {
  explicit Cache(std::uint32_t num_blocks)
      : tree({.block_size = kBlockSize, .num_blocks = num_blocks}, clock) {}

  void insert(const Prompt& prompt) {
    (void)tree.insert(kKey, prompt, table_from(next_block));
    next_block += kPromptBlocks;
  }
  // Someone else goes another way after each turn, so that the prompt lies on as many edges.
  void insert_chat(const Prompt& prompt, std::uint32_t turns) {
    insert(prompt);
    std::vector<BlockId> table = table_from(next_block - kPromptBlocks);
    for (std::uint32_t turn = 1; turn < turns; ++turn) {
      const std::uint32_t depth = turn * kPromptBlocks / turns;
      Prompt other(prompt.begin(), prompt.begin() + std::ptrdiff_t{depth} * kBlockSize);
      other.resize(other.size() + kBlockSize, -1);
      std::vector<BlockId> other_table(table.begin(), table.begin() + depth);
      other_table.emplace_back(next_block++);
      (void)tree.insert(kKey, other, other_table);
    }
  }

  SteadyClock clock;
  RadixTree tree;
  std::uint32_t next_block = 0;
};

// The median time of one call, each for another prompt; `cold`: nothing of it is in the processor's caches.
template <class Call>
double median_us(unsigned runs, bool cold, Call&& call) {
  std::vector<double> times;
  for (unsigned run = 0; run < runs; ++run) {
    if (cold) make_cold();
    times.push_back(call(run));
  }
  return median(std::move(times));
}

double match_us(RadixTree& tree, const Prompt& prompt) {
  const auto start = std::chrono::steady_clock::now();
  const Match match = tree.lookup(kKey, prompt);
  const double time = microseconds_since(start);
  if (match.matched_tokens() != kPromptTokens) fmt::print(stderr, "no match\n");
  return time;
}

double chain_us(HashChain& chain, const Prompt& prompt) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::uint32_t> found = chain.match(prompt);
  const double time = microseconds_since(start);
  if (found.size() != kPromptBlocks) fmt::print(stderr, "no match\n");
  chain.release(found);
  return time;
}

void bench_matches(Report& report, const std::vector<Prompt>& prompts) {
  constexpr std::uint32_t kBlocks = kPrompts * (kPromptBlocks + kTurns);
  Cache edges(kBlocks);
  Cache chats(kBlocks);
  Cache torn(2 * kTorn * kPromptBlocks);
  HashChain chain(kBlocks);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    edges.insert(prompts[i]);
    chats.insert_chat(prompts[i], kTurns);
    if (i < kTorn) torn.insert_chat(prompts[i], kPromptBlocks);
    chain.insert(prompts[i], static_cast<std::uint32_t>(i) * kPromptBlocks);
  }
  for (const bool cold : {false, true}) {
    const unsigned runs = cold ? kColdRuns : kWarmRuns;
    const char* state = cold ? "cold" : "warm";
    // Copied, because a request's own tokens are in the cache.
    Prompt prompt;
    const auto next = [&](unsigned run) -> const Prompt& {
      prompt = prompts[cold ? std::size_t{run} * 31 % kTorn * (prompts.size() / kTorn) : 5];
      return prompt;
    };
    const double edge = median_us(runs, cold, [&](unsigned run) { return match_us(edges.tree, next(run)); });
    const double chat = median_us(runs, cold, [&](unsigned run) { return match_us(chats.tree, next(run)); });
    const double worst = median_us(
        runs, cold, [&](unsigned run) { return match_us(torn.tree, prompts[cold ? run % kTorn : 5]); });
    const double hashes = median_us(runs, cold, [&](unsigned run) { return chain_us(chain, next(run)); });
    const std::string name = fmt::format("match and pin 8192 tokens, a million blocks, {}", state);
    report.add({.name = name + ", one edge", .metric = "time", .value = edge, .unit = "us"});
    report.add({.name = name + ", 16 edges", .metric = "time", .value = chat, .unit = "us"});
    report.add({.name = name + ", 512 edges", .metric = "time", .value = worst, .unit = "us"});
    report.add({.name = name + ", hash-per-block chain", .metric = "time", .value = hashes, .unit = "us"});
    report.add({.name = name + ", one edge",
                .metric = "times faster than the chain",
                .value = hashes / edge,
                .unit = "x"});
    report.add({.name = name + ", 16 edges",
                .metric = "times faster than the chain",
                .value = hashes / chat,
                .unit = "x"});
  }
}

void bench_changes(Report& report, const std::vector<Prompt>& prompts) {
  Cache cache(kPrompts * kPromptBlocks);
  std::vector<double> inserts;
  for (const Prompt& prompt : prompts) {
    const std::vector<BlockId> table = table_from(cache.next_block);
    const auto start = std::chrono::steady_clock::now();
    (void)cache.tree.insert(kKey, prompt, table);
    inserts.push_back(microseconds_since(start));
    cache.next_block += kPromptBlocks;
  }
  report.add({.name = "publish 8192 tokens", .metric = "time", .value = median(inserts), .unit = "us"});
  const auto blocks = static_cast<double>(cache.tree.cached_blocks());
  report.add({.name = "memory beside token ids, long edges",
              .metric = "size of a cached block",
              .value = static_cast<double>(cache.tree.overhead_bytes()) / blocks,
              .unit = "bytes"});
  for (const std::size_t count : {1U, 64U}) {
    constexpr std::size_t kEvicted = 256'000;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t done = 0; done < kEvicted; done += count) keep(cache.tree.evict(count));
    report.add({.name = fmt::format("evict {} at a time, long edges", count),
                .metric = "time of a block",
                .value = microseconds_since(start) / kEvicted * 1000,
                .unit = "ns"});
  }
}

// Prompts of one block each: nothing to compress.
void bench_single_blocks(Report& report) {
  constexpr std::uint32_t kBlocks = 1'000'000;
  Cache cache(kBlocks);
  std::vector<std::uint32_t> order(kBlocks);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  Prompt prompt(kBlockSize);
  for (const std::uint32_t i : order) {
    prompt[0] = static_cast<TokenId>(i);
    (void)cache.tree.insert(kKey, prompt, std::vector{BlockId(i)});
  }
  report.add({.name = "memory beside token ids, edges of one block",
              .metric = "size of a cached block",
              .value = static_cast<double>(cache.tree.overhead_bytes()) / kBlocks,
              .unit = "bytes"});
  for (const std::size_t count : {1U, 64U}) {
    constexpr std::size_t kEvicted = 256'000;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t done = 0; done < kEvicted; done += count) keep(cache.tree.evict(count));
    report.add({.name = fmt::format("evict {} at a time, edges of one block", count),
                .metric = "time of a block",
                .value = microseconds_since(start) / kEvicted * 1000,
                .unit = "ns"});
  }
}

void bench_pool(Report& report) {
  constexpr std::uint32_t kBlocks = 1024;
  kv::BlockPool pool(kBlocks);
  std::vector<BlockId> taken(kBlocks);
  const double seconds = median_seconds(101, [&] {
    for (BlockId& block : taken) block = *pool.try_alloc();
    for (const BlockId block : taken) (void)pool.dec_ref(block);
  });
  report.add({.name = "block pool, alloc and free",
              .metric = "time of a block",
              .value = seconds / kBlocks * 1e9,
              .unit = "ns"});
}

int run(int argc, char** argv) {
  Report report("prefix",
                "block size 16, one thread; match: median of 2001 runs warm (one prompt again and again), 61 "
                "cold (another "
                "prompt each time, 512 MiB written in between); the chain hashes with XXH3-64",
                argc, argv);
  const std::vector<Prompt> prompts = random_prompts(kPrompts);
  bench_matches(report, prompts);
  bench_changes(report, prompts);
  bench_single_blocks(report);
  bench_pool(report);
  report.write();
  return 0;
}

}  // namespace
}  // namespace metrale::bench

int main(int argc, char** argv) {
  return metrale::bench::run(argc, argv);
}
