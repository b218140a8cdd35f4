// SPDX-License-Identifier: Apache-2.0
// Values of chat templates. A text knows of each byte whether it came with the conversation, so that special
// tokens spelled in a message are not taken for the template's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace metrale::engine::jinja {

// UTF-8, with a mark for each byte. Cheap to copy: copies share what they hold until one of them is appended
// to.
class Text {
 public:
  Text() = default;
  // The template's own words.
  explicit Text(std::string_view bytes) : Text(bytes, kOwn) {}
  // What came with the conversation.
  [[nodiscard]] static Text given(std::string_view bytes) { return {bytes, kGiven}; }

  [[nodiscard]] const std::string& bytes() const { return body().bytes; }
  [[nodiscard]] std::size_t size() const { return body().bytes.size(); }
  [[nodiscard]] bool is_given(std::size_t at) const { return body().marks[at] == kGiven; }
  [[nodiscard]] Text part(std::size_t begin, std::size_t end) const;
  void append(const Text& other);
  // `bytes` in the place of byte `at` of `source`, with its mark.
  void append_like(std::string_view bytes, const Text& source, std::size_t at);

 private:
  static constexpr char kOwn = 0;
  static constexpr char kGiven = 1;
  struct Body {
    std::string bytes;
    std::string marks;
  };
  Text(std::string_view bytes, char mark)
      : body_(std::make_shared<Body>(Body{std::string(bytes), std::string(bytes.size(), mark)})) {}
  [[nodiscard]] const Body& body() const;
  // The body of this text alone.
  [[nodiscard]] Body& own_body();

  std::shared_ptr<Body> body_;  // null: empty
};

class Value;
struct Node;

struct Undefined {};
struct None {};
struct List {
  std::vector<Value> items;
  std::uint32_t depth = 1;  // of lists and dicts in each other
};
struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // in order of insertion
  std::uint32_t depth = 1;
  bool is_namespace = false;

  [[nodiscard]] const Value* find(std::string_view key) const;
  void put(std::string_view key, Value value);
};
// A macro, a global function, or a method with the value that it belongs to.
struct Function {
  std::string name;
  const Node* macro = nullptr;
  std::shared_ptr<const Value> self;
};

// What one rendering may cost: steps of the interpreter, and bytes and items that are looked at or made on
// the way.
class Budget {
 public:
  // Throws Failure where more than the limit is spent.
  void spend(std::uint64_t steps);
  // For a text of this size that is looked at or made.
  void spend_text(std::size_t bytes);
  // For a name that is looked for among so many.
  void spend_look_up(std::size_t names);
  // For a value that is gone through once.
  void spend_on(const Value& value);

 private:
  std::uint64_t spent_ = 0;
};

// Cheap to copy: texts, lists and dicts are shared. It converts from each of its kinds, as a variant does.
using AnyValue = std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
                              std::shared_ptr<Dict>, Function>;
class Value : public AnyValue {
 public:
  using AnyValue::AnyValue;

  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(static_cast<const AnyValue*>(this));
  }
  template <class T>
  [[nodiscard]] bool is() const {
    return get<T>() != nullptr;
  }
  [[nodiscard]] const Text* text() const { return get<Text>(); }
  [[nodiscard]] const List* list() const;
  [[nodiscard]] Dict* dict() const;
  // Integers, and booleans as in Python.
  [[nodiscard]] bool has_integer() const { return is<bool>() || is<std::int64_t>(); }
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] bool is_number() const { return has_integer() || is<double>(); }
  [[nodiscard]] double number() const;
};

// What Python says of them. Each may throw Failure.
[[nodiscard]] bool is_true(const Value& value);
[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);
[[nodiscard]] bool less(const Value& a, const Value& b);
// As std::string::find, in time linear in both lengths.
[[nodiscard]] std::size_t find_bytes(std::string_view text, std::string_view part, std::size_t begin);
[[nodiscard]] bool contains(const Value& container, const Value& item, Budget& budget);
// str(value): of lists, dicts and functions not supported.
[[nodiscard]] Text to_text(const Value& value);
// json.dumps(value, ensure_ascii=False); `indent` < 0: on one line.
[[nodiscard]] Text to_json(const Value& value, int indent, Budget& budget);
[[nodiscard]] std::string_view kind_of(const Value& value);

// A new list or dict; throws Failure where values are nested too deeply.
[[nodiscard]] Value make_list(std::vector<Value> items);
[[nodiscard]] Value make_dict(std::vector<std::pair<std::string, Value>> items, bool is_namespace = false);
// `value` may lie in a list, dict or namespace: throws Failure for a namespace and for what is nested too
// deeply. Returns the depth of what holds it.
std::uint32_t checked_depth(const Value& value);

// What goes wrong while a template is read or rendered, without the place.
struct Failure {
  enum class Kind : std::uint8_t {
    kUnsupported,  // this engine does not have it
    kWrong,        // the template does what it may not
    kRefused,      // the template's own raise_exception
  };
  Kind kind = Kind::kWrong;
  std::string message;
};

[[nodiscard]] std::size_t count_characters(std::string_view text);
// Where the character of this number begins; the end where there are not so many.
[[nodiscard]] std::size_t character_start(std::string_view text, std::size_t number);
// Python's str.isspace for one character.
[[nodiscard]] bool is_python_space(char32_t c);

}  // namespace metrale::engine::jinja
