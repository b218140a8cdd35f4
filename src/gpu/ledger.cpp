// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>
#include <utility>

#include <metrale/base/assert.h>
#include <metrale/gpu/ledger.h>

namespace metrale::gpu {

std::uint64_t AllocationLedger::add(DevicePtr base, std::uint64_t bytes, CallSite site) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t id = next_id_;
  const auto [entry, added] =
      by_base_.emplace(base.address(), AllocationInfo{.base = base, .bytes = bytes, .id = id, .site = site});
  METRALE_ASSERT(added);
  try {
    base_by_id_.emplace(id, base.address());
  } catch (...) {
    by_base_.erase(entry);
    throw;
  }
  ++next_id_;
  live_bytes_ += bytes;
  return id;
}

std::optional<AllocationInfo> AllocationLedger::remove(DevicePtr base) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_base_.find(base.address());
  if (found == by_base_.end()) return std::nullopt;
  const AllocationInfo info = found->second;
  by_base_.erase(found);
  base_by_id_.erase(info.id);
  live_bytes_ -= info.bytes;
  ++removals_;
  return info;
}

std::optional<AllocationInfo> AllocationLedger::containing(std::uint64_t address) const {
  const std::scoped_lock lock(mutex_);
  const auto after = by_base_.upper_bound(address);
  if (after == by_base_.begin()) return std::nullopt;
  const AllocationInfo& info = std::prev(after)->second;
  if (address - info.base.address() >= info.bytes) return std::nullopt;
  return info;
}

bool AllocationLedger::is_live(std::uint64_t id) const {
  const std::scoped_lock lock(mutex_);
  return base_by_id_.contains(id);
}

std::uint64_t AllocationLedger::live_bytes() const {
  const std::scoped_lock lock(mutex_);
  return live_bytes_;
}

std::uint64_t AllocationLedger::live_count() const {
  const std::scoped_lock lock(mutex_);
  return by_base_.size();
}

std::uint64_t AllocationLedger::removals() const {
  const std::scoped_lock lock(mutex_);
  return removals_;
}

std::vector<AllocationInfo> AllocationLedger::entries() const {
  const std::scoped_lock lock(mutex_);
  std::vector<AllocationInfo> all;
  all.reserve(by_base_.size());
  for (const auto& [base, info] : by_base_) all.push_back(info);
  return all;
}

std::vector<AllocationSiteReport> AllocationLedger::report(std::size_t top, std::uint64_t min_bytes) const {
  std::map<std::pair<std::string_view, unsigned>, AllocationSiteReport> by_site;
  for (const AllocationInfo& info : entries()) {
    AllocationSiteReport& site = by_site[{info.site.file, info.site.line}];
    site.site = info.site;
    site.bytes += info.bytes;
    ++site.count;
  }
  std::vector<AllocationSiteReport> rows;
  for (const auto& [where, site] : by_site) {
    if (site.bytes >= min_bytes) rows.push_back(site);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (rows.size() > top) rows.resize(top);
  return rows;
}

}  // namespace metrale::gpu
