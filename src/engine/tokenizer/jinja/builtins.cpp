// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/jinja/builtins.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "engine/tokenizer/jinja/text_methods.h"

namespace metrale::engine::jinja {
namespace {

constexpr std::size_t kMaxWalkedText = std::size_t{64} << 10;

Failure wrong(std::string message) {
  return {Failure::Kind::kWrong, std::move(message)};
}
Failure unsupported(std::string message) {
  return {Failure::Kind::kUnsupported, std::move(message)};
}

std::int64_t length_of(const Value& value) {
  if (const Text* text = value.text()) return static_cast<std::int64_t>(count_characters(text->bytes()));
  if (const List* list = value.list()) return static_cast<std::int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<std::int64_t>(dict->items.size());
  if (value.is<Undefined>()) return 0;
  throw wrong(fmt::format("{} has no length", kind_of(value)));
}

Value pairs_of(const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.items) pairs.push_back(make_list({Text(key), value}));
  return make_list(std::move(pairs));
}

Value joined(const Value& value, const Arguments& arguments, Budget& budget) {
  const Value* separator = arguments.find(0, "d");
  if (arguments.find(1, "attribute") != nullptr) throw unsupported("the filter join with an attribute");
  Text out;
  bool first = true;
  for (const Value& item : items_of(value)) {
    if (!first && separator != nullptr) out.append(to_text(*separator));
    first = false;
    out.append(to_text(item));
    budget.spend_text(out.size());
  }
  return out;
}

// selectattr("role", "equalto", "user"), select("string") and their opposites.
Value selected(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const bool by_attribute = name.ends_with("attr");
  const bool keeps = name.starts_with("select");
  const std::size_t test_at = by_attribute ? 1 : 0;
  if (!arguments.named.empty() || arguments.positional.size() < test_at) throw wrong("a filter's arguments");
  const auto text_at = [&](std::size_t at) -> const std::string& {
    const Text* text = arguments.positional[at].text();
    if (text == nullptr) throw wrong("a filter's arguments");
    return text->bytes();
  };
  Arguments rest;
  for (std::size_t i = test_at + 1; i < arguments.positional.size(); ++i)
    rest.positional.push_back(arguments.positional[i]);
  std::vector<Value> kept;
  for (const Value& item : items_of(value)) {
    const Value subject = by_attribute ? attribute_of(item, text_at(0)) : item;
    const bool passes = arguments.positional.size() > test_at
                            ? apply_test(text_at(test_at), subject, rest, budget)
                            : is_true(subject);
    if (passes == keeps) kept.push_back(item);
  }
  return make_list(std::move(kept));
}

Value mapped(const Value& value, const Arguments& arguments, Budget& budget) {
  std::vector<Value> results;
  const Value* attribute = arguments.positional.empty() ? arguments.find(0, "attribute") : nullptr;
  const Value* filter = arguments.positional.empty() ? nullptr : arguments.positional.data();
  const Value* name = attribute != nullptr ? attribute : filter;
  if (name == nullptr || name->text() == nullptr) throw wrong("the filter map without a name");
  Arguments rest;
  for (std::size_t i = 1; i < arguments.positional.size(); ++i)
    rest.positional.push_back(arguments.positional[i]);
  for (const Value& item : items_of(value)) {
    results.push_back(attribute != nullptr ? attribute_of(item, name->text()->bytes())
                                           : apply_filter(name->text()->bytes(), item, rest, budget));
  }
  return make_list(std::move(results));
}

Value as_integer(const Value& value) {
  if (value.has_integer()) return value.integer();
  if (const double* number = value.get<double>()) {
    if (!(std::abs(*number) < 9e18)) throw wrong("a number that is too large");
    return static_cast<std::int64_t>(*number);
  }
  throw unsupported(fmt::format("the filter int on {}", kind_of(value)));
}

Value to_json_filter(const Value& value, const Arguments& arguments, Budget& budget) {
  constexpr std::int64_t kMaxIndent = 16;
  std::int64_t indent = -1;
  for (const auto& [name, option] : arguments.named) {
    if (name == "indent" && option.has_integer()) {
      indent = std::clamp<std::int64_t>(option.integer(), 0, kMaxIndent);
    } else if (!(name == "indent" && option.is<None>()) && !(name == "ensure_ascii" && !is_true(option))) {
      throw unsupported(fmt::format("the filter tojson with {}", name));
    }
  }
  if (!arguments.positional.empty()) throw unsupported("the filter tojson with positional arguments");
  return to_json(value, static_cast<int>(indent), budget);
}

Value end_of(std::string_view name, const Value& value) {
  const std::vector<Value> items = items_of(value);
  if (items.empty()) return {};
  return name == "first" ? items.front() : items.back();
}

Value reversed(const Value& value) {
  if (value.text() != nullptr) return slice_of(value, {}, {}, std::int64_t{-1});
  std::vector<Value> items = items_of(value);
  std::reverse(items.begin(), items.end());
  return make_list(std::move(items));
}

Value default_filter(const Value& value, const Arguments& arguments) {
  const Value* other = arguments.find(0, "default_value");
  const Value* falsy = arguments.find(1, "boolean");
  const bool replaces = value.is<Undefined>() || (falsy != nullptr && is_true(*falsy) && !is_true(value));
  if (!replaces) return value;
  return other == nullptr ? Value(Text()) : *other;
}

// Each character of a text; only for texts that are not long.
std::vector<Text> characters_of(const Text& text) {
  if (text.size() > kMaxWalkedText) throw wrong("a text of more than 64 KiB character by character");
  std::vector<Text> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at + character_start(std::string_view(text.bytes()).substr(at), 1);
    characters.push_back(text.part(at, end));
    at = end;
  }
  return characters;
}

// The bounds are inside of the text, as numbers of characters.
Text text_slice(const Text& text, std::int64_t first, std::int64_t last, std::int64_t stride) {
  if (stride == 1) {
    const std::size_t begin = character_start(text.bytes(), static_cast<std::size_t>(first));
    const std::size_t end = character_start(text.bytes(), static_cast<std::size_t>(std::max(first, last)));
    return text.part(begin, end);
  }
  const std::vector<Text> characters = characters_of(text);
  Text out;
  for (std::int64_t at = first; stride > 0 ? at < last : at > last;) {
    out.append(characters[static_cast<std::size_t>(at)]);
    if (__builtin_add_overflow(at, stride, &at)) break;
  }
  return out;
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_arithmetic(std::string_view sign, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  if (sign == "+") overflows = __builtin_add_overflow(a, b, &result);
  if (sign == "-") overflows = __builtin_sub_overflow(a, b, &result);
  if (sign == "*") overflows = __builtin_mul_overflow(a, b, &result);
  if (sign == "//" || sign == "%" || sign == "/") {
    if (b == 0) throw wrong("a division by zero");
    if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (b == -1) overflows = a == std::numeric_limits<std::int64_t>::min();
    if (!overflows) result = sign == "//" ? floor_divided(a, b) : a - floor_divided(a, b) * b;
  }
  if (overflows) throw wrong("a number that is too large");
  return result;
}

}  // namespace

const Value* Arguments::find(std::size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  const auto entry =
      std::find_if(named.begin(), named.end(), [&](const auto& each) { return each.first == name; });
  return entry == named.end() ? nullptr : &entry->second;
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  budget.spend_on(value);
  if (name == "default" || name == "d") return default_filter(value, arguments);
  if (name == "tojson") return to_json_filter(value, arguments, budget);
  if (name == "length" || name == "count") return length_of(value);
  if (name == "join") return joined(value, arguments, budget);
  if (name == "first" || name == "last") return end_of(name, value);
  if (name == "list") return make_list(items_of(value));
  if (name == "reverse") return reversed(value);
  if (name == "string") return to_text(value);
  if (name == "safe") return value;
  if (name == "int") return as_integer(value);
  if (name == "map") return mapped(value, arguments, budget);
  if (name == "selectattr" || name == "rejectattr" || name == "select" || name == "reject")
    return selected(name, value, arguments, budget);
  if (name == "items") {
    if (value.is<Undefined>()) return make_list({});
    if (value.dict() == nullptr) throw wrong(fmt::format("the filter items on {}", kind_of(value)));
    return pairs_of(*value.dict());
  }
  // The other filters turn their value into text first.
  if (name == "trim") return text_method("strip", to_text(value), arguments, budget);
  if (name == "replace" || name == "upper" || name == "lower" || name == "capitalize" || name == "title")
    return text_method(name, to_text(value), arguments, budget);
  if (name == "indent") return indented(to_text(value), arguments, budget);
  throw unsupported(fmt::format("the filter {}", name));
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const auto other = [&]() -> const Value& {
    if (arguments.positional.size() != 1) throw wrong(fmt::format("the test {} needs one argument", name));
    return arguments.positional.front();
  };
  const bool is_sequence = value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr;
  if (name == "defined") return !value.is<Undefined>();
  if (name == "undefined") return value.is<Undefined>();
  if (name == "none") return value.is<None>();
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.dict() != nullptr && !value.dict()->is_namespace;
  if (name == "sequence" || name == "iterable") return is_sequence || value.is<Undefined>();
  if (name == "boolean") return value.is<bool>();
  if (name == "true") return value.is<bool>() && is_true(value);
  if (name == "false") return value.is<bool>() && !is_true(value);
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is<std::int64_t>();
  if (name == "float") return value.is<double>();
  if (name == "callable") return value.is<Function>();
  if (name == "odd") return value.integer() % 2 != 0;
  if (name == "even") return value.integer() % 2 == 0;
  if (name == "divisibleby")
    return integer_arithmetic("%", value.integer(), other().integer()).integer() == 0;
  if (name == "eq" || name == "equalto" || name == "==") return equal(value, other(), budget);
  if (name == "ne" || name == "!=") return !equal(value, other(), budget);
  if (name == "in") return contains(other(), value, budget);
  if (name == "lt" || name == "lessthan" || name == "<") return less(value, other());
  if (name == "gt" || name == "greaterthan" || name == ">") return less(other(), value);
  throw unsupported(fmt::format("the test {}", name));
}

Value attribute_of(const Value& value, std::string_view name) {
  if (value.is<Undefined>()) throw wrong(fmt::format("'{}' of an undefined value", name));
  constexpr std::array<std::string_view, 4> kDictMethods = {"items", "keys", "values", "get"};
  const auto has = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const Dict* dict = value.dict();
  const bool is_method = (dict != nullptr && !dict->is_namespace && has(kDictMethods)) ||
                         (value.text() != nullptr && has(kTextMethods));
  // As in Jinja: the attribute before the item.
  if (is_method) return Function{std::string(name), nullptr, std::make_shared<const Value>(value)};
  if (dict == nullptr) return {};
  const Value* item = dict->find(name);
  return item == nullptr ? Value() : *item;
}

Value item_of(const Value& value, const Value& key) {
  if (value.is<Undefined>()) throw wrong("an item of an undefined value");
  if (const Dict* dict = value.dict()) {
    const Value* item = key.text() == nullptr ? nullptr : dict->find(key.text()->bytes());
    if (item == nullptr && key.text() != nullptr) return attribute_of(value, key.text()->bytes());
    return item == nullptr ? Value() : *item;
  }
  if (key.has_integer() && (value.list() != nullptr || value.text() != nullptr)) {
    const std::int64_t size = length_of(value);
    const std::int64_t at = key.integer() < 0 ? key.integer() + size : key.integer();
    if (at < 0 || at >= size) return {};
    if (const List* list = value.list()) return list->items[static_cast<std::size_t>(at)];
    return slice_of(value, at, at + 1, {});
  }
  if (key.text() != nullptr) return attribute_of(value, key.text()->bytes());
  return {};
}

Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step) {
  if (value.text() == nullptr && value.list() == nullptr)
    throw wrong(fmt::format("a slice of {}", kind_of(value)));
  const auto is_given = [](const Value& bound) { return !bound.is<Undefined>() && !bound.is<None>(); };
  const std::int64_t stride = is_given(step) ? step.integer() : 1;
  if (stride == 0) throw wrong("a slice with step 0");
  const std::int64_t size = length_of(value);
  const bool forward = stride > 0;
  const std::int64_t lowest = forward ? 0 : -1;
  const std::int64_t highest = forward ? size : size - 1;
  const auto bound = [&](const Value& given, std::int64_t otherwise) {
    if (!is_given(given)) return otherwise;
    const std::int64_t at = given.integer();
    return std::clamp(at < 0 ? at + size : at, lowest, highest);
  };
  const std::int64_t first = bound(begin, forward ? lowest : highest);
  const std::int64_t last = bound(end, forward ? highest : lowest);
  if (const Text* text = value.text()) return text_slice(*text, first, last, stride);
  std::vector<Value> items;
  for (std::int64_t at = first; forward ? at < last : at > last;) {
    items.push_back(value.list()->items[static_cast<std::size_t>(at)]);
    if (__builtin_add_overflow(at, stride, &at)) break;
  }
  return make_list(std::move(items));
}

Value call_method(const Function& method, const Arguments& arguments, Budget& budget) {
  if (const Text* text = method.self->text()) return text_method(method.name, *text, arguments, budget);
  const Dict& dict = *method.self->dict();
  if (method.name == "items") return pairs_of(dict);
  if (method.name == "keys") return make_list(items_of(*method.self));
  if (method.name == "values") {
    std::vector<Value> values;
    for (const auto& [key, value] : dict.items) values.push_back(value);
    return make_list(std::move(values));
  }
  const Value* key = arguments.find(0, "key");
  const Value* otherwise = arguments.find(1, "default");
  const Value* item = key == nullptr || key->text() == nullptr ? nullptr : dict.find(key->text()->bytes());
  if (item != nullptr) return *item;
  return otherwise == nullptr ? Value(None{}) : *otherwise;
}

std::vector<Value> items_of(const Value& value) {
  if (const List* list = value.list()) return list->items;
  std::vector<Value> items;
  if (const Dict* dict = value.dict(); dict != nullptr && !dict->is_namespace) {
    for (const auto& [key, item] : dict->items) items.emplace_back(Text(key));
    return items;
  }
  if (const Text* text = value.text()) {
    for (Text& character : characters_of(*text)) items.emplace_back(std::move(character));
    return items;
  }
  if (value.is<Undefined>()) return items;
  throw wrong(fmt::format("a loop over {}", kind_of(value)));
}

Value arithmetic(std::string_view sign, const Value& a, const Value& b, Budget& budget) {
  if (sign == "~" || (sign == "+" && a.text() != nullptr && b.text() != nullptr)) {
    Text out = to_text(a);
    out.append(to_text(b));
    budget.spend_text(out.size());
    return out;
  }
  if (sign == "+" && a.list() != nullptr && b.list() != nullptr) {
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    budget.spend(items.size());
    return make_list(std::move(items));
  }
  if (sign == "*" && a.text() != nullptr && b.has_integer()) {
    Text out;
    for (std::int64_t i = 0; i < b.integer(); ++i) {
      out.append(*a.text());
      budget.spend_text(out.size());
    }
    return out;
  }
  if (!a.is_number() || !b.is_number() || sign == "**")
    throw Failure{sign == "+" ? Failure::Kind::kWrong : Failure::Kind::kUnsupported,
                  fmt::format("{} {} {}", kind_of(a), sign, kind_of(b))};
  if (a.has_integer() && b.has_integer()) return integer_arithmetic(sign, a.integer(), b.integer());
  if (sign == "+") return a.number() + b.number();
  if (sign == "-") return a.number() - b.number();
  if (sign == "*") return a.number() * b.number();
  if (sign == "/" && b.number() != 0) return a.number() / b.number();
  throw unsupported(fmt::format("{} on these numbers", sign));
}

}  // namespace metrale::engine::jinja
