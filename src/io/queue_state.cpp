// SPDX-License-Identifier: Apache-2.0
#include "io/queue_state.h"

#include <algorithm>
#include <limits>
#include <thread>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/log.h>

namespace metrale::io {
namespace {

const EngineLimits& checked_limits(const std::unique_ptr<IoEngine>& engine) {
  expects(engine != nullptr, "an IoQueue needs an engine");
  expects(engine->limits().depth != 0, "an IoQueue needs a depth of at least 1");
  return engine->limits();
}

bool is_multiple(std::uint64_t value, std::uint32_t of) {
  return value % of == 0;
}

}  // namespace

IoQueue::State::State(std::unique_ptr<IoEngine> engine_in)
    : engine(std::move(engine_in)),
      slots(checked_limits(engine).depth),
      outgoing(slots.size()),
      incoming(slots.size()),
      files(engine->limits().max_files),
      buffers(engine->limits().max_buffers) {
  free.reserve(slots.size());
  prepared.reserve(slots.size());
  ready.reserve(slots.size());
  done.reserve(slots.size());
  for (std::size_t i = slots.size(); i-- != 0;) free.push_back(static_cast<std::uint32_t>(i));
}

IoQueue::State::FileEntry& IoQueue::State::file(FileId id) {
  FileEntry* const entry = files.find(id.value());
  expects(entry != nullptr, "this file is not registered with the queue");
  return *entry;
}

IoQueue::State::BufferEntry& IoQueue::State::buffer(BufferId id) {
  BufferEntry* const entry = buffers.find(id.value());
  expects(entry != nullptr, "this buffer is not registered with the queue");
  return *entry;
}

BufferId IoQueue::State::add_buffer(const BufferEntry& entry) {
  expects(entry.bytes != 0 && entry.address != 0, "a buffer to register has bytes");
  if (entry.memory == MemoryKind::kDevice && !engine->capabilities().device_memory) {
    throw Unsupported(engine->name(), "device memory");
  }
  expects(!buffers.full(), "the queue's table of buffers is full");
  const BufferId id(buffers.add(entry));
  try {
    buffer(id).with_engine =
        engine->register_buffer(slot_of(id.value()), entry.memory, entry.address, entry.bytes);
  } catch (...) {
    buffers.remove(id.value());
    throw;
  }
  if (!buffer(id).with_engine) ++stats.plain_buffers;
  return id;
}

void IoQueue::State::check(const IoRequest& request, const FileEntry& entry) {
  expects(request.bytes != 0 && request.address != 0, "a request transfers bytes");
  expects(
      request.offset <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - request.bytes,
      "a request ends beyond what a file can have");
  if (request.kind == IoKind::kWrite && !entry.is_writable) {
    throw InvalidArgument(fmt::format("'{}' is open for reading only", entry.path));
  }
  if (request.memory == MemoryKind::kDevice && !engine->capabilities().device_memory) {
    throw Unsupported(engine->name(), "device memory");
  }
  if (request.buffer != BufferId{}) {
    const BufferEntry& range = buffer(request.buffer);
    expects(range.memory == request.memory && request.address >= range.address &&
                request.bytes <= range.bytes &&
                request.address - range.address <= range.bytes - request.bytes,
            "a request leaves its registered buffer");
  }
  const DirectAlignment& align = entry.alignment;
  if (!is_multiple(request.address, align.memory_bytes) || !is_multiple(request.offset, align.offset_bytes) ||
      !is_multiple(request.bytes, align.offset_bytes)) {
    throw InvalidArgument(fmt::format(
        "direct I/O on '{}' wants addresses at multiples of {} bytes, offsets and lengths at multiples of {}",
        entry.path, align.memory_bytes, align.offset_bytes));
  }
}

std::uint32_t IoQueue::State::take_slot(const IoRequest& request, FileEntry& entry) {
  const std::uint32_t index = free.back();
  free.pop_back();
  Slot& slot = slots[index];
  slot.request = request;
  slot.granule = std::max(entry.alignment.memory_bytes, entry.alignment.offset_bytes);
  slot.progress = Progress(request.kind, request.bytes, slot.granule);
  slot.stage = Stage::kPrepared;
  slot.generation = ++slot.attempt;
  ++entry.users;
  if (request.buffer != BufferId{}) ++buffer(request.buffer).users;
  return index;
}

void IoQueue::State::free_slot(std::uint32_t index) noexcept {
  Slot& slot = slots[index];
  if (FileEntry* const entry = files.find(slot.request.file.value())) --entry->users;
  if (BufferEntry* const entry = buffers.find(slot.request.buffer.value())) --entry->users;
  slot.stage = Stage::kFree;
  free.push_back(index);
}

RawTransfer IoQueue::State::raw(std::uint32_t index) {
  Slot& slot = slots[index];
  const IoRequest& request = slot.request;
  const FileEntry& entry = *files.find(request.file.value());
  const Progress::Attempt attempt = slot.progress.next();
  const BufferEntry* const range = buffers.find(request.buffer.value());
  return {.tag = pack_id(index, slot.attempt),
          .kind = request.kind,
          .memory = request.memory,
          .fd = entry.fd,
          .file_slot = entry.with_engine ? slot_of(request.file.value()) : kNoSlot,
          .buffer_slot = range != nullptr && range->with_engine ? slot_of(request.buffer.value()) : kNoSlot,
          .offset = request.offset + attempt.at,
          .address = request.address + attempt.at,
          .bytes = attempt.bytes,
          .granule_bytes = slot.granule};
}

void IoQueue::State::push_ready() {
  while (!ready.empty()) {
    const std::size_t count = std::min(ready.size(), outgoing.size());
    for (std::size_t i = 0; i < count; ++i) outgoing[i] = raw(ready[i]);
    const std::size_t taken = engine->submit(std::span(outgoing).first(count));
    for (std::size_t i = 0; i < taken; ++i) slots[ready.pop()].stage = Stage::kInEngine;
    in_engine += taken;
    if (taken != 0) refusals = 0;
    if (taken < count) break;
  }
  if (ready.empty() || in_engine != 0) return;
  if (++refusals >= Progress::kMaxFruitless) {
    const IoRequest& request = slots[ready[0]].request;
    throw IoError("cannot submit to", file(request.file).path, EAGAIN, request.offset);
  }
  std::this_thread::yield();
}

void IoQueue::State::pull(IoTime deadline) {
  const std::size_t count = engine->reap(incoming, in_engine == 0 ? kNoWait : deadline);
  for (std::size_t i = 0; i < count; ++i) take_answer(incoming[i]);
}

void IoQueue::State::take_answer(const RawCompletion& answer) {
  const std::uint32_t index = slot_of(answer.tag);
  if (index >= slots.size() || slots[index].stage != Stage::kInEngine ||
      slots[index].attempt != generation_of(answer.tag)) {
    if (stats.refused_answers++ == 0) {
      log().warn(
          "io: {} answered for a transfer that is not in flight; refused, and from now on counted only",
          engine->name());
    }
    return;
  }
  Slot& slot = slots[index];
  ++slot.attempt;
  --in_engine;
  const Progress::Step step = slot.progress.take(answer.result);
  switch (step) {
    case Progress::Step::kMore:
      ++(answer.result < 0 ? stats.retries : stats.short_transfers);
      // A request that nobody will ask about ends here.
      if (is_draining) return finish(index, IoStatus::kFailed);
      slot.stage = Stage::kReady;
      ready.push(index);
      return;
    case Progress::Step::kDone:
      return finish(index, IoStatus::kComplete);
    case Progress::Step::kEndOfFile:
      return finish(index, IoStatus::kEndOfFile);
    case Progress::Step::kFailed:
      return finish(index, IoStatus::kFailed);
  }
}

void IoQueue::State::finish(std::uint32_t index, IoStatus status) {
  slots[index].status = status;
  slots[index].stage = Stage::kDone;
  done.push(index);
}

std::size_t IoQueue::State::deliver(std::span<Completion> out) {
  const std::size_t count = std::min(out.size(), done.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t index = done.pop();
    const Slot& slot = slots[index];
    out[i] = {.request = RequestId(pack_id(index, slot.generation)),
              .user_data = slot.request.user_data,
              .kind = slot.request.kind,
              .status = slot.status,
              .file = slot.request.file,
              .offset = slot.request.offset,
              .wanted_bytes = slot.request.bytes,
              .bytes = slot.progress.done_bytes(),
              .error_number = slot.progress.error_number(),
              .library_code = slot.progress.library_code()};
    ++stats.completed;
    if (slot.status == IoStatus::kFailed) ++stats.failed;
    stats.bytes += slot.progress.done_bytes();
    free_slot(index);
  }
  return count;
}

}  // namespace metrale::io
