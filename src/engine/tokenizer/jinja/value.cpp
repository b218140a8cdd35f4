// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/utf8.h"

namespace metrale::engine::jinja {
namespace {

constexpr std::uint32_t kMaxDepth = 64;
constexpr std::uint64_t kMaxSteps = 1'000'000;
constexpr std::size_t kNamesPerStep = 16;
constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
constexpr std::size_t kTextBytesPerStep = 1024;

Failure wrong(std::string message) {
  return {Failure::Kind::kWrong, std::move(message)};
}

void append(Text& out, std::string_view bytes) {
  out.append(Text(bytes));
}

void append_json_string(Text& out, const Text& text) {
  append(out, "\"");
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text.bytes()[at];
    std::string shown(1, c);
    if (c == '"' || c == '\\') {
      shown.insert(0, "\\");
    } else if (c == '\n') {
      shown = "\\n";
    } else if (c == '\r') {
      shown = "\\r";
    } else if (c == '\t') {
      shown = "\\t";
    } else if (c == '\b') {
      shown = "\\b";
    } else if (c == '\f') {
      shown = "\\f";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      shown = fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    }
    out.append_like(shown, text, at);
  }
  append(out, "\"");
}

// Python's repr of a float.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

class JsonWriter {
 public:
  JsonWriter(int indent, Budget& budget) : indent_(indent), budget_(budget) {}

  void write(const Value& value, int level) {
    budget_.spend_on(value);
    if (const Text* text = value.text()) {
      append_json_string(out, *text);
    } else if (const List* list = value.list()) {
      write_items(list->items, "[", "]", level, [&](const Value& item) { write(item, level + 1); });
    } else if (const Dict* dict = value.dict()) {
      write_items(dict->items, "{", "}", level, [&](const auto& item) {
        append_json_string(out, Text(item.first));
        append(out, ": ");
        write(item.second, level + 1);
      });
    } else if (value.is<None>()) {
      append(out, "null");
    } else if (const bool* flag = value.get<bool>()) {
      append(out, *flag ? "true" : "false");
    } else if (value.is_number()) {
      out.append(to_text(value));
    } else {
      throw wrong(fmt::format("tojson: {} has no JSON form", kind_of(value)));
    }
  }

  Text out;

 private:
  template <class Items, class Item>
  void write_items(const Items& items, std::string_view open, std::string_view close, int level, Item item) {
    append(out, open);
    bool first = true;
    for (const auto& each : items) {
      if (!first) append(out, indent_ < 0 ? ", " : ",");
      first = false;
      new_line(level + 1);
      item(each);
    }
    if (!first) new_line(level);
    append(out, close);
  }
  void new_line(int level) {
    if (indent_ >= 0) append(out, "\n" + std::string(static_cast<std::size_t>(level * indent_), ' '));
  }
  int indent_;
  Budget& budget_;
};

}  // namespace

const Text::Body& Text::body() const {
  static const Body empty;
  return body_ ? *body_ : empty;
}

Text::Body& Text::own_body() {
  // Alone is who holds the only reference: nobody else can copy it meanwhile.
  if (!body_ || body_.use_count() != 1) body_ = std::make_shared<Body>(body());
  return *body_;
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text text;
  Body& own = text.own_body();
  own.bytes = body().bytes.substr(begin, end - begin);
  own.marks = body().marks.substr(begin, end - begin);
  return text;
}

void Text::append(const Text& other) {
  const std::shared_ptr<const Body> source = other.body_;  // which may be this text's own
  if (!source) return;
  Body& own = own_body();
  own.bytes += source->bytes;
  own.marks += source->marks;
}

void Text::append_like(std::string_view bytes, const Text& source, std::size_t at) {
  const char mark = source.body().marks[at];
  Body& own = own_body();
  own.bytes += bytes;
  own.marks.append(bytes.size(), mark);
}

const Value* Dict::find(std::string_view key) const {
  const auto entry =
      std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.first == key; });
  return entry == items.end() ? nullptr : &entry->second;
}

void Dict::put(std::string_view key, Value value) {
  const auto entry =
      std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.first == key; });
  if (entry == items.end()) {
    items.emplace_back(std::string(key), std::move(value));
  } else {
    entry->second = std::move(value);
  }
}

void Budget::spend(std::uint64_t steps) {
  spent_ += std::min(steps, kMaxSteps + 1);
  if (spent_ > kMaxSteps) throw wrong("the template takes too many steps");
}

void Budget::spend_text(std::size_t bytes) {
  if (bytes > kMaxTextBytes) throw wrong("a text is longer than 64 MiB");
  spend(1 + bytes / kTextBytesPerStep);
}

void Budget::spend_look_up(std::size_t names) {
  spend(names / kNamesPerStep);
}

void Budget::spend_on(const Value& value) {
  if (const Text* text = value.text()) return spend_text(text->size());
  const std::size_t items = value.list() != nullptr   ? value.list()->items.size()
                            : value.dict() != nullptr ? value.dict()->items.size()
                                                      : 0;
  spend(1 + items);
}

const List* Value::list() const {
  const auto* list = get<std::shared_ptr<const List>>();
  return list == nullptr ? nullptr : list->get();
}

Dict* Value::dict() const {
  const auto* dict = get<std::shared_ptr<Dict>>();
  return dict == nullptr ? nullptr : dict->get();
}

std::int64_t Value::integer() const {
  if (const bool* flag = get<bool>()) return *flag ? 1 : 0;
  if (const auto* number = get<std::int64_t>()) return *number;
  throw wrong(fmt::format("an integer is needed, not {}", kind_of(*this)));
}

double Value::number() const {
  if (const double* number = get<double>()) return *number;
  return static_cast<double>(integer());
}

bool is_true(const Value& value) {
  if (value.is<Undefined>() || value.is<None>()) return false;
  if (const Text* text = value.text()) return text->size() != 0;
  if (const List* list = value.list()) return !list->items.empty();
  if (const Dict* dict = value.dict()) return dict->is_namespace || !dict->items.empty();
  if (value.is_number()) return value.number() != 0;
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (a.has_integer() && b.has_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.text() != nullptr && b.text() != nullptr) {
    budget.spend_text(a.text()->size());
    return a.text()->bytes() == b.text()->bytes();
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    const auto same = [&](const Value& x, const Value& y) { return equal(x, y, budget); };
    return std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(),
                      b.list()->items.end(), same);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    return std::all_of(a.dict()->items.begin(), a.dict()->items.end(), [&](const auto& item) {
      const Value* other = b.dict()->find(item.first);
      return other != nullptr && equal(item.second, *other, budget);
    });
  }
  return (a.is<None>() && b.is<None>()) || (a.is<Undefined>() && b.is<Undefined>());
}

bool less(const Value& a, const Value& b) {
  if (a.has_integer() && b.has_integer()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  // Bytes of UTF-8 are in the order of their characters.
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes() < b.text()->bytes();
  throw wrong(fmt::format("{} and {} have no order", kind_of(a), kind_of(b)));
}

std::size_t find_bytes(std::string_view text, std::string_view part, std::size_t begin) {
  if (begin > text.size()) return std::string_view::npos;
  const void* at = ::memmem(text.data() + begin, text.size() - begin, part.data(), part.size());
  return at == nullptr ? std::string_view::npos
                       : static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  budget.spend_on(container);
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) throw wrong(fmt::format("{} in a string", kind_of(item)));
    return find_bytes(text->bytes(), item.text()->bytes(), 0) != std::string::npos;
  }
  if (const List* list = container.list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& each) { return equal(each, item, budget); });
  }
  if (const Dict* dict = container.dict())
    return item.text() != nullptr && dict->find(item.text()->bytes()) != nullptr;
  if (container.is<Undefined>()) return false;
  throw wrong(fmt::format("{} contains nothing", kind_of(container)));
}

Text to_text(const Value& value) {
  if (const Text* text = value.text()) return *text;
  if (value.is<Undefined>()) return {};
  if (value.is<None>()) return Text("None");
  if (const bool* flag = value.get<bool>()) return Text(*flag ? "True" : "False");
  if (const auto* number = value.get<std::int64_t>()) return Text(fmt::format("{}", *number));
  if (const double* number = value.get<double>()) return Text(float_text(*number));
  throw Failure{Failure::Kind::kUnsupported, fmt::format("{} as text", kind_of(value))};
}

Text to_json(const Value& value, int indent, Budget& budget) {
  JsonWriter writer(indent, budget);
  writer.write(value, 0);
  return std::move(writer.out);
}

std::string_view kind_of(const Value& value) {
  if (value.text() != nullptr) return "a string";
  if (value.list() != nullptr) return "a list";
  if (value.dict() != nullptr) return value.dict()->is_namespace ? "a namespace" : "a dict";
  if (value.is<Undefined>()) return "an undefined value";
  if (value.is<None>()) return "none";
  if (value.is<Function>()) return "a function";
  return value.is<bool>() ? "a boolean" : "a number";
}

std::uint32_t checked_depth(const Value& value) {
  std::uint32_t depth = 1;
  if (const List* list = value.list()) depth += list->depth;
  if (const Dict* dict = value.dict()) {
    if (dict->is_namespace) throw Failure{Failure::Kind::kUnsupported, "a namespace inside another value"};
    depth += dict->depth;
  }
  const auto* function = value.get<Function>();
  if (function != nullptr && function->self) depth += checked_depth(*function->self);
  if (depth > kMaxDepth) throw wrong("values are nested too deeply");
  return depth;
}

Value make_list(std::vector<Value> items) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, checked_depth(item));
  list->items = std::move(items);
  return std::shared_ptr<const List>(std::move(list));
}

Value make_dict(std::vector<std::pair<std::string, Value>> items, bool is_namespace) {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : items) dict->depth = std::max(dict->depth, checked_depth(value));
  for (auto& [key, value] : items) dict->put(key, std::move(value));
  dict->is_namespace = is_namespace;
  return dict;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += first_utf8_unit(text.substr(at)).length_bytes) ++count;
  return count;
}

std::size_t character_start(std::string_view text, std::size_t number) {
  std::size_t at = 0;
  for (; number > 0 && at < text.size(); --number) at += first_utf8_unit(text.substr(at)).length_bytes;
  return at;
}

bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

}  // namespace metrale::engine::jinja
