// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <metrale/base/error.h>
#include <metrale/io/fault.h>

namespace metrale::io {
namespace {

constexpr std::size_t kMaxLate = 3;
constexpr int kPoison = 0xA5;

}  // namespace

FaultEngine::FaultEngine(std::unique_ptr<IoEngine> inner, const IoFaultRates& rates)
    : IoEngine((expects(inner != nullptr, "a FaultEngine needs an engine"), inner->limits())),
      inner_(std::move(inner)),
      rates_(rates),
      random_(rates.seed),
      incoming_(limits().depth) {
  // Each transfer can be answered twice and bring a stale answer with it.
  answers_.reserve(std::size_t{limits().depth} * 3);
  late_.reserve(std::size_t{limits().depth} * 3);
  marks_.reserve(limits().depth);
}

void FaultEngine::inject(IoFault fault, std::uint64_t nth, std::uint32_t detail) {
  expects(nth != 0, "the next transfer is number 1");
  script_.push_back({.transfer = transfers_ + nth, .fault = fault, .detail = detail});
}

bool FaultEngine::do_register_buffer(std::uint32_t slot, MemoryKind memory, std::uint64_t address,
                                     std::uint64_t bytes) {
  return inner_->register_buffer(slot, memory, address, bytes);
}

bool FaultEngine::do_register_file(std::uint32_t slot, int fd, const std::string& path) {
  return inner_->register_file(slot, fd, path);
}

bool FaultEngine::draws(unsigned thousandths) {
  return thousandths != 0 && below(1000) < thousandths;
}

bool FaultEngine::random_fault(const RawTransfer& transfer, Order& order) {
  const auto is = [&order](IoFault fault, int detail = 0) {
    order.fault = fault;
    order.detail = static_cast<std::uint32_t>(detail);
    return true;
  };
  if (draws(rates_.refused)) return is(IoFault::kRefused);
  if (draws(rates_.interrupted)) return is(IoFault::kError, EINTR);
  if (draws(rates_.again)) return is(IoFault::kError, EAGAIN);
  if (draws(rates_.failed)) {
    const int errors[] = {EIO, EINVAL, transfer.kind == IoKind::kWrite ? ENOSPC : EIO};
    return is(IoFault::kError, errors[below(std::size(errors))]);
  }
  if (draws(rates_.shortened)) return is(IoFault::kShort);
  if (draws(rates_.stale)) return is(IoFault::kStale);
  if (draws(rates_.duplicate)) return is(IoFault::kDuplicate);
  if (draws(rates_.late)) return is(IoFault::kLate);
  return false;
}

bool FaultEngine::next_fault(const RawTransfer& transfer, Order& order) {
  ++transfers_;
  const auto found = std::find_if(script_.begin(), script_.end(),
                                  [this](const Order& ordered) { return ordered.transfer == transfers_; });
  if (found == script_.end()) return random_fault(transfer, order);
  order = *found;
  script_.erase(found);
  return true;
}

std::size_t FaultEngine::do_submit(std::span<const RawTransfer> transfers) {
  std::size_t taken = 0;
  while (taken < transfers.size() && submit_one(transfers[taken])) ++taken;
  return taken;
}

bool FaultEngine::submit_one(const RawTransfer& transfer) {
  Order order;
  const bool has_fault = next_fault(transfer, order);
  if (has_fault && order.fault == IoFault::kShort) return submit_short(transfer, order.detail);
  if (has_fault) {
    count(order.fault);
    if (order.fault == IoFault::kRefused) return false;
    if (order.fault == IoFault::kError) {
      answers_.push({.tag = transfer.tag, .result = -static_cast<std::int64_t>(order.detail)});
      return true;
    }
  }
  if (inner_->submit(std::span(&transfer, 1)) == 0) return false;
  if (has_fault) marks_.push_back({.transfer = transfer, .fault = order.fault});
  ++in_inner_;
  return true;
}

// Either the inner engine is asked for less, or it does everything and the answer says less: so that a direct
// transfer ends where the next one cannot begin. What it said it did not bring is then spoilt.
bool FaultEngine::submit_short(RawTransfer transfer, std::uint32_t bytes) {
  const RawTransfer whole = transfer;
  const std::uint32_t granule = transfer.granule_bytes;
  const bool can_be_short = transfer.bytes > granule;
  const bool is_told = can_be_short && bytes == 0 && granule > 1 && transfer.kind == IoKind::kRead &&
                       transfer.memory == MemoryKind::kHost && below(2) == 0;
  if (can_be_short && !is_told) {
    const auto parts = (transfer.bytes - 1) / granule;
    transfer.bytes = bytes != 0 ? bytes : granule * static_cast<std::uint32_t>(1 + below(parts));
  }
  if (inner_->submit(std::span(&transfer, 1)) == 0) return false;
  if (can_be_short) count(IoFault::kShort);
  if (is_told) marks_.push_back({.transfer = whole, .fault = IoFault::kShort});
  ++in_inner_;
  return true;
}

void FaultEngine::take(const RawCompletion& answer) {
  const auto found = std::find_if(marks_.begin(), marks_.end(),
                                  [&](const Mark& mark) { return mark.transfer.tag == answer.tag; });
  if (found == marks_.end()) {
    answers_.push(answer);
  } else {
    const Mark mark = *found;
    marks_.erase(found);
    take_marked(mark, answer);
  }
}

void FaultEngine::take_marked(const Mark& mark, RawCompletion answer) {
  if (mark.fault == IoFault::kShort && answer.result > mark.transfer.granule_bytes + 1) {
    const std::uint64_t whole = static_cast<std::uint64_t>(answer.result);
    const std::uint64_t least = mark.transfer.granule_bytes + std::uint64_t{1};
    const std::uint64_t told = least + below(whole - least);
    std::memset(std::bit_cast<std::byte*>(mark.transfer.address) + told, kPoison, whole - told);
    answer.result = static_cast<std::int64_t>(told);
  }
  if (mark.fault == IoFault::kStale) answers_.push({.tag = old_tag_, .result = answer.result});
  if (mark.fault == IoFault::kLate) {
    late_.push(answer);
    return;
  }
  answers_.push(answer);
  if (mark.fault == IoFault::kDuplicate) (below(2) == 0 ? answers_ : late_).push(answer);
}

std::size_t FaultEngine::do_reap(std::span<RawCompletion> out, IoTime deadline) {
  if (in_inner_ != 0) {
    const std::size_t found = inner_->reap(incoming_, answers_.empty() ? deadline : kNoWait);
    for (std::size_t i = 0; i < found; ++i) take(incoming_[i]);
    in_inner_ -= found;
  }
  if (rates_.late != 0 && answers_.size() > 1) {
    std::swap(answers_[below(answers_.size())], answers_[below(answers_.size())]);
  }
  if (in_inner_ == 0 || late_.size() > kMaxLate) {
    while (!late_.empty()) answers_.push(late_.pop());
  }
  const std::size_t given = std::min(out.size(), answers_.size());
  for (std::size_t i = 0; i < given; ++i) {
    out[i] = answers_.pop();
    old_tag_ = out[i].tag;
  }
  return given;
}

}  // namespace metrale::io
