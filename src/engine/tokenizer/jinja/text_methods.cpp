// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/jinja/text_methods.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "engine/tokenizer/utf8.h"

namespace metrale::engine::jinja {
namespace {

Failure wrong(std::string message) {
  return {Failure::Kind::kWrong, std::move(message)};
}
Failure unsupported(std::string message) {
  return {Failure::Kind::kUnsupported, std::move(message)};
}

// A string argument; null where it is not given or none.
const Text* text_argument(const Arguments& arguments, std::size_t position, std::string_view name) {
  const Value* value = arguments.find(position, name);
  if (value == nullptr || value->is<None>()) return nullptr;
  if (value->text() == nullptr) throw wrong(fmt::format("{} where a string should be", kind_of(*value)));
  return value->text();
}

const Text& needed_text(const Arguments& arguments, std::size_t position, std::string_view name) {
  const Text* text = text_argument(arguments, position, name);
  if (text == nullptr) throw wrong("a string is missing");
  return *text;
}

Text stripped(const Text& text, const Text* characters, bool left, bool right) {
  const std::string_view bytes = text.bytes();
  const auto goes = [&](std::string_view character) {
    if (characters != nullptr) return characters->bytes().find(character) != std::string::npos;
    const Utf8Unit unit = first_utf8_unit(character);
    return unit.kind == Utf8Kind::kCharacter && is_python_space(unit.code_point);
  };
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (left && begin < end) {
    const std::size_t length = first_utf8_unit(bytes.substr(begin)).length_bytes;
    if (!goes(bytes.substr(begin, length))) break;
    begin += length;
  }
  while (right && end > begin) {
    const std::size_t length = last_utf8_unit(bytes.substr(begin, end - begin)).length_bytes;
    if (!goes(bytes.substr(end - length, length))) break;
    end -= length;
  }
  return text.part(begin, end);
}

Value split(const Text& text, const Arguments& arguments, Budget& budget) {
  const Text* separator = text_argument(arguments, 0, "sep");
  const Value* most = arguments.find(1, "maxsplit");
  std::int64_t splits_left = most == nullptr ? -1 : most->integer();
  if (separator == nullptr) throw unsupported("split without a separator");
  if (separator->size() == 0) throw wrong("split by an empty string");
  std::vector<Value> parts;
  std::size_t begin = 0;
  for (;;) {
    budget.spend(1);
    const std::size_t end =
        splits_left == 0 ? std::string::npos : find_bytes(text.bytes(), separator->bytes(), begin);
    if (end == std::string::npos) break;
    parts.emplace_back(text.part(begin, end));
    begin = end + separator->size();
    --splits_left;
  }
  parts.emplace_back(text.part(begin, text.size()));
  return make_list(std::move(parts));
}

Value split_lines(const Text& text) {
  if (text.bytes().find_first_of("\r\v\f\x1c\x1d\x1e") != std::string::npos ||
      text.bytes().find("\xC2\x85") != std::string::npos ||
      text.bytes().find("\xE2\x80\xA8") != std::string::npos ||
      text.bytes().find("\xE2\x80\xA9") != std::string::npos)
    throw unsupported("splitlines of a text with line breaks other than \\n");
  std::vector<Value> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.bytes().find('\n', begin), text.size());
    lines.emplace_back(text.part(begin, end));
    begin = end + 1;
  }
  return make_list(std::move(lines));
}

Value replaced(const Text& text, const Arguments& arguments, Budget& budget) {
  const Text& from = needed_text(arguments, 0, "old");
  const Text& to = needed_text(arguments, 1, "new");
  const Value* most = arguments.find(2, "count");
  std::int64_t left = most == nullptr || most->is<None>() ? -1 : most->integer();
  if (from.size() == 0) throw unsupported("replace of an empty string");
  Text out;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t at = left == 0 ? std::string::npos : find_bytes(text.bytes(), from.bytes(), begin);
    if (at == std::string::npos) break;
    out.append(text.part(begin, at));
    out.append(to);
    budget.spend_text(out.size() / 64);
    begin = at + from.size();
    --left;
  }
  out.append(text.part(begin, text.size()));
  return out;
}

char upper_of(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}
char lower_of(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

Value with_case(std::string_view name, const Text& text) {
  Text out;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text.bytes()[at];
    if (static_cast<unsigned char>(c) >= 0x80)
      throw unsupported(fmt::format("{} of text that is not ASCII", name));
    const bool raises = name == "upper" || (name == "capitalize" && at == 0) || (name == "title" && !in_word);
    const char changed = raises ? upper_of(c) : lower_of(c);
    out.append_like({&changed, 1}, text, at);
    in_word = upper_of(c) != lower_of(c);
  }
  return out;
}

bool has_affix(std::string_view name, const Text& text, const Arguments& arguments) {
  const auto fits = [&](const Value& affix) {
    if (affix.text() == nullptr) throw wrong(fmt::format("{} where a string should be", kind_of(affix)));
    const std::string& bytes = affix.text()->bytes();
    return name == "startswith" ? text.bytes().starts_with(bytes) : text.bytes().ends_with(bytes);
  };
  if (arguments.positional.size() != 1)
    throw unsupported(fmt::format("{} with other than one argument", name));
  const Value& affix = arguments.positional.front();
  if (const List* list = affix.list()) return std::any_of(list->items.begin(), list->items.end(), fits);
  return fits(affix);
}

std::int64_t occurrences(const Text& text, const Text& part) {
  if (part.size() == 0) throw unsupported("count of an empty string");
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = find_bytes(text.bytes(), part.bytes(), at)) != std::string::npos;
       at += part.size())
    ++count;
  return count;
}

}  // namespace

Value text_method(std::string_view name, const Text& text, const Arguments& arguments, Budget& budget) {
  budget.spend_text(text.size());
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return stripped(text, text_argument(arguments, 0, "chars"), name != "rstrip", name != "lstrip");
  if (name == "split") return split(text, arguments, budget);
  if (name == "splitlines") return split_lines(text);
  if (name == "replace") return replaced(text, arguments, budget);
  if (name == "startswith" || name == "endswith") return has_affix(name, text, arguments);
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "title")
    return with_case(name, text);
  if (name == "count") return occurrences(text, needed_text(arguments, 0, "sub"));
  if (name == "find") {
    const std::size_t at = find_bytes(text.bytes(), needed_text(arguments, 0, "sub").bytes(), 0);
    if (at == std::string::npos) return std::int64_t{-1};
    return static_cast<std::int64_t>(count_characters(std::string_view(text.bytes()).substr(0, at)));
  }
  throw unsupported(fmt::format("the method {} of a string", name));
}

Value indented(const Text& text, const Arguments& arguments, Budget& budget) {
  constexpr std::int64_t kMaxWidth = 64;
  const Value* width = arguments.find(0, "width");
  const Value* first = arguments.find(1, "first");
  const Value* blank = arguments.find(2, "blank");
  if (width != nullptr && !width->has_integer())
    throw unsupported("the filter indent with a width that is no number");
  const std::int64_t spaces = std::clamp<std::int64_t>(width == nullptr ? 4 : width->integer(), 0, kMaxWidth);
  const Text margin(std::string(static_cast<std::size_t>(spaces), ' '));
  const bool with_first = first != nullptr && is_true(*first);
  const bool with_blank = blank != nullptr && is_true(*blank);
  Text out;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    budget.spend(1);
    const std::size_t end = std::min(text.bytes().find('\n', begin), text.size());
    const bool is_blank = begin == end;
    if (begin == 0 ? with_first : !is_blank || with_blank) out.append(margin);
    out.append(text.part(begin, std::min(end + 1, text.size())));
    begin = end + 1;
  }
  return out;
}

}  // namespace metrale::engine::jinja
