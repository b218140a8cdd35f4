// SPDX-License-Identifier: Apache-2.0
// Filters, tests and methods that chat templates use. All throw Failure; an unknown name is not supported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja/value.h"

namespace metrale::engine::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a position or of a name; null where it is not given.
  [[nodiscard]] const Value* find(std::size_t position, std::string_view name) const;
};

[[nodiscard]] Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments,
                                 Budget& budget);
[[nodiscard]] bool apply_test(std::string_view name, const Value& value, const Arguments& arguments,
                              Budget& budget);
// value.name: what a dict holds under the name, else a method; undefined where there is neither.
[[nodiscard]] Value attribute_of(const Value& value, std::string_view name);
// value[key].
[[nodiscard]] Value item_of(const Value& value, const Value& key);
// value[begin:end:step]; an undefined or none bound is the end that the step's sign asks for.
[[nodiscard]] Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step);
[[nodiscard]] Value call_method(const Function& method, const Arguments& arguments, Budget& budget);
// What a for loop goes through.
[[nodiscard]] std::vector<Value> items_of(const Value& value);
// a + b, a - b, …
[[nodiscard]] Value arithmetic(std::string_view sign, const Value& a, const Value& b, Budget& budget);

}  // namespace metrale::engine::jinja
