// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/capture.h"

#include <variant>

namespace metrale::backends::cpu {

void Capture::note_uses(const gpu::AllocationBook& book) {
  const std::size_t node = nodes.commands().size() - 1;
  const Command& command = nodes.commands().back();
  const auto note = [&](const std::byte* host) {
    uses.note(book, node, reinterpret_cast<std::uintptr_t>(host));
  };
  if (const auto* kernel = std::get_if<KernelCommand>(&command)) {
    for (const std::uint64_t word : nodes.args(*kernel)) uses.note(book, node, word);
  } else if (const auto* copy = std::get_if<CopyCommand>(&command)) {
    if (copy->to_device) note(copy->dst);
    if (copy->from_device) note(copy->src);
  } else if (const auto* rows = std::get_if<Copy2dCommand>(&command)) {
    note(rows->dst);
    note(rows->src);
  } else if (const auto* fill = std::get_if<MemsetCommand>(&command)) {
    note(fill->dst);
  }
}

}  // namespace metrale::backends::cpu
