// SPDX-License-Identifier: Apache-2.0
// IdTable: which custom_ids were met in the input and which have a result already, in 16 bytes an id and the
// free room of a hash table, for inputs of many millions of lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace metrale::app {

// An id as 127 bits of its hash: two ids of the same hash are not to be met with.
struct IdKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;  // even; the table keeps a mark in the last bit
  friend bool operator==(const IdKey&, const IdKey&) = default;
};
[[nodiscard]] IdKey id_key(std::string_view custom_id);
// Of the line that repeats an id, known by its number instead. Differs from every id_key().
[[nodiscard]] IdKey repeated_id_key(std::uint64_t line_number);

class IdTable {
 public:
  IdTable();
  // It has a result.
  void add_result(IdKey key);

  enum class Found : std::uint8_t {
    kNew,     // first met now
    kResult,  // first met now, and has a result
    kAgain,   // met before
  };
  Found meet(IdKey key);

  // Results that no meet() asked for.
  [[nodiscard]] std::size_t unmet_results() const { return unmet_results_; }

 private:
  IdKey& slot_of(IdKey key);
  IdKey& insert(IdKey key);

  std::vector<IdKey> slots_;  // a power of two; both words 0: free
  std::size_t used_ = 0;
  std::size_t unmet_results_ = 0;
};

}  // namespace metrale::app
