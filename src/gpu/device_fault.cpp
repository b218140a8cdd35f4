// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <metrale/gpu/device_fault.h>

namespace metrale::gpu {

std::string to_string(const DeviceFault& fault) {
  switch (fault.code) {
    case DeviceFaultCode::kNone:
      return "no fault";
    case DeviceFaultCode::kTooManyRows:
      return fmt::format("{} rows in this step, more than the launch was made for", fault.value);
    case DeviceFaultCode::kBadTokenId:
      return fmt::format("token id {} in row {} is outside the vocabulary", fault.value, fault.row);
    case DeviceFaultCode::kBadSlot:
      return fmt::format("slot {} in row {} is beyond the pool", fault.value, fault.row);
    case DeviceFaultCode::kBadRowId:
      return fmt::format("row id {} in row {} is beyond the input", fault.value, fault.row);
    case DeviceFaultCode::kBadStep:
      return fmt::format("the lengths of sequence {} contradict the step or its block table", fault.value);
    case DeviceFaultCode::kBadTableEntry:
      return fmt::format("entry {} of delta {} is beyond the block tables", fault.value, fault.row);
    case DeviceFaultCode::kAsked:
      return fmt::format("a kernel was asked to fail with {}", fault.value);
  }
  return fmt::format("fault {} in row {}: {}", static_cast<std::uint32_t>(fault.code), fault.row,
                     fault.value);
}

}  // namespace metrale::gpu
