// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <chrono>

#include <fmt/format.h>

#include <metrale/base/assert.h>
#include <metrale/base/log.h>
#include <metrale/io/io_queue.h>

#include "io/queue_state.h"

namespace metrale::io {
namespace {

std::uint64_t address_of(const void* memory) {
  return std::bit_cast<std::uintptr_t>(memory);
}

}  // namespace

IoRequest read_request(FileId file, std::uint64_t offset, std::span<std::byte> to, std::uint64_t user_data,
                       BufferId buffer) {
  return {.kind = IoKind::kRead,
          .file = file,
          .offset = offset,
          .memory = MemoryKind::kHost,
          .address = address_of(to.data()),
          .bytes = to.size(),
          .buffer = buffer,
          .user_data = user_data};
}

IoRequest read_request(FileId file, std::uint64_t offset, DevicePtr to, std::uint64_t bytes,
                       std::uint64_t user_data, BufferId buffer) {
  return {.kind = IoKind::kRead,
          .file = file,
          .offset = offset,
          .memory = MemoryKind::kDevice,
          .address = to.address(),
          .bytes = bytes,
          .buffer = buffer,
          .user_data = user_data};
}

IoRequest write_request(FileId file, std::uint64_t offset, std::span<const std::byte> from,
                        std::uint64_t user_data, BufferId buffer) {
  return {.kind = IoKind::kWrite,
          .file = file,
          .offset = offset,
          .memory = MemoryKind::kHost,
          .address = address_of(from.data()),
          .bytes = from.size(),
          .buffer = buffer,
          .user_data = user_data};
}

IoRequest write_request(FileId file, std::uint64_t offset, DevicePtr from, std::uint64_t bytes,
                        std::uint64_t user_data, BufferId buffer) {
  IoRequest request = read_request(file, offset, from, bytes, user_data, buffer);
  request.kind = IoKind::kWrite;
  return request;
}

IoQueue::IoQueue(std::unique_ptr<IoEngine> engine) : state_(std::make_unique<State>(std::move(engine))) {}

IoQueue::~IoQueue() {
  drain();
  state_->buffers.for_each_slot([this](std::uint32_t slot, State::BufferEntry& entry) {
    if (entry.with_engine) state_->engine->unregister_buffer(slot);
  });
  state_->files.for_each_slot([this](std::uint32_t slot, State::FileEntry& entry) {
    if (entry.with_engine) state_->engine->unregister_file(slot);
  });
}

std::string_view IoQueue::name() const {
  return state_->engine->name();
}
IoCapabilities IoQueue::capabilities() const {
  return state_->engine->capabilities();
}
const QueueStats& IoQueue::stats() const {
  return state_->stats;
}
std::size_t IoQueue::depth() const {
  return state_->slots.size();
}
std::size_t IoQueue::used_slots() const {
  return state_->slots.size() - state_->free.size();
}

BufferId IoQueue::register_buffer(std::span<std::byte> memory) {
  return state_->add_buffer(
      {.memory = MemoryKind::kHost, .address = address_of(memory.data()), .bytes = memory.size()});
}

BufferId IoQueue::register_buffer(DevicePtr memory, std::uint64_t bytes) {
  return state_->add_buffer({.memory = MemoryKind::kDevice, .address = memory.address(), .bytes = bytes});
}

void IoQueue::unregister_buffer(BufferId id) {
  const State::BufferEntry& entry = state_->buffer(id);
  expects(entry.users == 0, "a request still uses this buffer");
  if (entry.with_engine) state_->engine->unregister_buffer(slot_of(id.value()));
  state_->buffers.remove(id.value());
}

FileId IoQueue::register_file(const File& file) {
  expects(!state_->files.full(), "the queue's table of files is full");
  State::FileEntry entry{.path = file.path(), .fd = file.fd(), .is_writable = file.is_writable()};
  if (file.is_direct()) entry.alignment = file.direct_alignment().value_or(DirectAlignment{});
  const FileId id(state_->files.add(std::move(entry)));
  try {
    state_->file(id).with_engine = state_->engine->register_file(slot_of(id.value()), file.fd(), file.path());
  } catch (...) {
    state_->files.remove(id.value());
    throw;
  }
  return id;
}

void IoQueue::unregister_file(FileId id) {
  const State::FileEntry& entry = state_->file(id);
  expects(entry.users == 0, "a request still uses this file");
  if (entry.with_engine) state_->engine->unregister_file(slot_of(id.value()));
  state_->files.remove(id.value());
}

std::optional<RequestId> IoQueue::prepare(const IoRequest& request) {
  State::FileEntry& entry = state_->file(request.file);
  state_->check(request, entry);
  if (state_->free.empty()) return std::nullopt;
  const std::uint32_t index = state_->take_slot(request, entry);
  state_->prepared.push_back(index);
  return RequestId(pack_id(index, state_->slots[index].generation));
}

bool IoQueue::release(RequestId id) {
  const std::uint32_t index = slot_of(id.value());
  if (index >= state_->slots.size()) return false;
  const State::Slot& slot = state_->slots[index];
  if (slot.stage != State::Stage::kPrepared || slot.generation != generation_of(id.value())) return false;
  std::erase(state_->prepared, index);
  state_->free_slot(index);
  return true;
}

void IoQueue::submit() {
  for (const std::uint32_t index : state_->prepared) {
    state_->slots[index].stage = State::Stage::kReady;
    state_->ready.push(index);
  }
  state_->prepared.clear();
  state_->push_ready();
}

std::size_t IoQueue::poll(std::span<Completion> out, std::size_t at_least, IoTime deadline) {
  expects(at_least <= out.size(), "poll is asked to wait for more completions than it has room for");
  std::size_t count = state_->deliver(out);
  for (;;) {
    const bool is_enough = count >= at_least || state_->is_idle();
    state_->pull(is_enough ? kNoWait : deadline);
    state_->push_ready();
    count += state_->deliver(out.subspan(count));
    if (is_enough || count >= at_least) return count;
    if (deadline != kForever && (deadline == kNoWait || std::chrono::steady_clock::now() >= deadline))
      return count;
  }
}

void IoQueue::drain() noexcept {
  State& state = *state_;
  for (const std::uint32_t index : state.prepared) state.free_slot(index);
  state.prepared.clear();
  while (!state.ready.empty()) state.free_slot(state.ready.pop());
  state.is_draining = true;
  try {
    while (state.in_engine != 0) state.pull(kForever);
  } catch (const std::exception& error) {
    log().error("io: {} requests may still be in flight: {}", state.in_engine, error.what());
  }
  state.is_draining = false;
  while (!state.done.empty()) state.free_slot(state.done.pop());
}

IoError IoQueue::error_of(const Completion& completion) const {
  expects(completion.status != IoStatus::kComplete, "a complete transfer has no error");
  const State::FileEntry* const entry = state_->files.find(completion.file.value());
  const std::string_view path =
      entry != nullptr ? std::string_view(entry->path) : "a file no longer registered";
  const std::string_view operation = completion.kind == IoKind::kRead ? "cannot read" : "cannot write";
  const std::uint64_t at = completion.offset + completion.bytes;
  std::string detail = fmt::format("{} bytes wanted from byte {}, {} transferred", completion.wanted_bytes,
                                   completion.offset, completion.bytes);
  if (completion.status == IoStatus::kEndOfFile) {
    return {operation, path, 0, at, fmt::format("the file ends here; {}", detail)};
  }
  if (completion.library_code != 0) detail += fmt::format("; {} code {}", name(), completion.library_code);
  return {operation, path, completion.error_number, at, detail};
}

}  // namespace metrale::io
