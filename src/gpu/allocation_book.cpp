// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <metrale/base/log.h>
#include <metrale/gpu/allocation_book.h>

namespace metrale::gpu {
namespace {

constexpr std::size_t kReportedLeaks = 5;

std::string describe(const AllocationInfo& info) {
  return fmt::format("the allocation of {} bytes at {:#x} ({}:{})", info.bytes, info.base.address(),
                     info.site.file, info.site.line);
}

}  // namespace

AllocationInfo AllocationBook::remove(AllocationLedger& ledger, DevicePtr ptr, const char* call) {
  const auto info = ledger.remove(ptr);
  if (info) return *info;
  throw InvalidArgument(
      fmt::format("{}: {:#x} is not the base of a live allocation (freed twice, or never allocated here?)",
                  call, ptr.address()));
}

std::optional<AllocationUse> AllocationBook::use_of(std::uint64_t address) const {
  for (const AllocationLedger* ledger : {&device, &pinned, &arena, &foreign}) {
    if (const auto info = ledger->containing(address)) return AllocationUse{.ledger = ledger, .info = *info};
  }
  return std::nullopt;
}

DeviceRange AllocationBook::allocation_of(DevicePtr ptr) const {
  const auto use = use_of(ptr.address());
  return use ? DeviceRange{use->info.base, use->info.bytes} : DeviceRange{};
}

void AllocationBook::expect_range(DevicePtr ptr, std::uint64_t bytes, const char* what) const {
  const auto use = use_of(ptr.address());
  if (!use) {
    throw InvalidArgument(fmt::format("{}: {:#x} lies in no live allocation", what, ptr.address()));
  }
  const std::uint64_t left = use->info.bytes - (ptr.address() - use->info.base.address());
  if (bytes > left) {
    throw InvalidArgument(fmt::format("{}: {} bytes from {:#x} on leave {} by {} bytes", what, bytes,
                                      ptr.address(), describe(use->info), bytes - left));
  }
}

std::uint64_t AllocationBook::removals() const {
  return device.removals() + arena.removals() + pinned.removals();
}

void warn_of_leaks(const AllocationLedger& ledger) {
  const std::uint64_t count = ledger.live_count();
  if (count == 0) return;
  log().warn("{} device allocation(s), {} bytes, were never freed; the largest:", count, ledger.live_bytes());
  for (const AllocationSiteReport& row : ledger.report(kReportedLeaks, 0)) {
    log().warn("  {} bytes in {} allocation(s) of {}:{}", row.bytes, row.count, row.site.file, row.site.line);
  }
}

void GraphUses::note(const AllocationBook& book, std::size_t node, std::uint64_t address) {
  const auto use = book.use_of(address);
  if (!use) return;
  const bool known = std::any_of(uses_.begin(), uses_.end(), [&](const NodeUse& noted) {
    return noted.use.ledger == use->ledger && noted.use.info.id == use->info.id;
  });
  if (!known) uses_.push_back({.node = node, .use = *use});
}

const GraphUses::NodeUse* GraphUses::find_freed() const {
  const auto freed = std::find_if(uses_.begin(), uses_.end(), [](const NodeUse& noted) {
    return !noted.use.ledger->is_live(noted.use.info.id);
  });
  return freed == uses_.end() ? nullptr : &*freed;
}

std::string GraphUses::message(const NodeUse& freed, const std::string& description) {
  return fmt::format("graph: node {} ({}) points into {}, which was freed; capture the graph again",
                     freed.node, description, describe(freed.use.info));
}

}  // namespace metrale::gpu
