// SPDX-License-Identifier: Apache-2.0
// Shelf: a PreemptionStore over the simulated device.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "engine/scheduler/simulator.h"

namespace metrale::engine::test {

// Keeps what the simulated device has in the blocks.
class Shelf final : public PreemptionStore {
 public:
  Simulator* sim = nullptr;
  bool saves = true;
  bool restores = true;
  std::map<SequenceId, std::vector<std::vector<Simulator::Past>>> shelf;
  std::set<SequenceId> forgotten;

 private:
  bool do_save(SequenceId id, std::span<const BlockId> blocks, std::uint32_t num_tokens) override {
    EXPECT_EQ(blocks.size(), (num_tokens + kBlockSize - 1) / kBlockSize);
    if (!saves) return false;
    for (const BlockId block : blocks) shelf[id].push_back(sim->bytes(block));
    return true;
  }
  bool do_restore(SequenceId id, std::span<const BlockId> blocks, std::uint32_t) override {
    const auto saved = std::move(shelf.at(id));
    shelf.erase(id);
    if (!restores) return false;
    for (std::size_t i = 0; i < saved.size(); ++i) sim->bytes(blocks[i]) = saved[i];
    return true;
  }
  void do_forget(SequenceId id) noexcept override {
    shelf.erase(id);
    forgotten.insert(id);
  }
};

}  // namespace metrale::engine::test
