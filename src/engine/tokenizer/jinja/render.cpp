// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/jinja/render.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "engine/tokenizer/jinja/builtins.h"

namespace metrale::engine::jinja {
namespace {

constexpr std::uint32_t kMaxCallDepth = 16;
constexpr std::uint32_t kMaxLevels = 500;  // of statements and expressions in each other
constexpr std::size_t kMaxOutputBytes = std::size_t{64} << 20;

Failure wrong(std::string message) {
  return {Failure::Kind::kWrong, std::move(message)};
}
Failure unsupported(std::string message) {
  return {Failure::Kind::kUnsupported, std::move(message)};
}

enum class Flow : std::uint8_t { kOn, kBreak, kContinue };
using Scope = std::vector<std::pair<std::string, Value>>;

class Renderer {
 public:
  Renderer(Scope variables, std::time_t now) : now_(now) { scopes_.push_back(std::move(variables)); }

  Text run(const Node& tree) {
    try {
      (void)execute(tree);
    } catch (Failure& failure) {
      throw FailureAt{std::move(failure), line_};
    }
    return std::move(out_);
  }

 private:
  class Level {
   public:
    explicit Level(Renderer& renderer) : renderer_(renderer) {
      if (++renderer_.levels_ > kMaxLevels) throw wrong("parts are nested too deeply");
    }
    ~Level() { --renderer_.levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Renderer& renderer_;
  };

  // ---- statements

  Flow execute(const Node& node) {
    const Level level(*this);
    line_ = node.line;
    budget_.spend(1);
    switch (node.kind) {
      case NodeKind::kBlock:
        for (const NodePtr& child : node.children) {
          if (const Flow flow = execute(*child); flow != Flow::kOn) return flow;
        }
        return Flow::kOn;
      case NodeKind::kData:
        write(*node.literal.text());
        return Flow::kOn;
      case NodeKind::kOutput:
        write(to_text(evaluate(*node.children[0])));
        return Flow::kOn;
      case NodeKind::kIf:
        return execute_if(node);
      case NodeKind::kFor:
        return execute_for(node);
      case NodeKind::kSet:
        set(node, evaluate(*node.children[0]));
        return Flow::kOn;
      case NodeKind::kSetBlock:
        set(node, captured(*node.children[0]));
        return Flow::kOn;
      case NodeKind::kMacro:
        assign(node.name, Function{node.name, &node, nullptr});
        return Flow::kOn;
      case NodeKind::kBreak:
        return Flow::kBreak;
      default:
        return Flow::kContinue;
    }
  }

  void write(const Text& text) {
    budget_.spend_text(text.size());
    out_.append(text);
    if (out_.size() > kMaxOutputBytes) throw wrong("the text is longer than 64 MiB");
  }

  // What a block writes, in a scope of its own.
  Value captured(const Node& block) {
    Text outer = std::exchange(out_, Text());
    scopes_.emplace_back();
    (void)execute(block);
    scopes_.pop_back();
    return std::exchange(out_, std::move(outer));
  }

  Flow execute_if(const Node& node) {
    std::size_t at = 0;
    for (; at + 1 < node.children.size(); at += 2) {
      if (is_true(evaluate(*node.children[at]))) return execute(*node.children[at + 1]);
    }
    return at < node.children.size() ? execute(*node.children[at]) : Flow::kOn;
  }

  void bind(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) return assign(targets[0], value);
    const std::vector<Value> parts = items_of(value);
    if (parts.size() != targets.size())
      throw wrong(fmt::format("{} values for {} loop variables", parts.size(), targets.size()));
    for (std::size_t i = 0; i < parts.size(); ++i) assign(targets[i], parts[i]);
  }

  Flow execute_for(const Node& node) {
    std::vector<Value> items = items_of(evaluate(*node.children[0]));
    budget_.spend(items.size());
    if (const Node* condition = node.children[1].get()) {
      std::vector<Value> kept;
      for (Value& item : items) {
        scopes_.emplace_back();
        bind(node.names, item);
        if (is_true(evaluate(*condition))) kept.push_back(std::move(item));
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    // As in Jinja: an iteration that was cut short leaves the way open for the else block.
    bool completed = false;
    for (std::size_t i = 0; i < items.size(); ++i) {
      scopes_.emplace_back();
      bind(node.names, items[i]);
      assign("loop", loop_value(items, i));
      const Flow flow = execute(*node.children[2]);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
      completed = completed || flow == Flow::kOn;
    }
    if (!completed && node.children[3]) return execute(*node.children[3]);
    return Flow::kOn;
  }

  static Value loop_value(const std::vector<Value>& items, std::size_t i) {
    const auto index = static_cast<std::int64_t>(i);
    const auto size = static_cast<std::int64_t>(items.size());
    Scope fields = {
        {"index0", index}, {"index", index + 1}, {"revindex0", size - index - 1}, {"revindex", size - index},
        {"length", size},  {"first", i == 0},    {"last", i + 1 == items.size()}};
    // A namespace among the items is no part of another value, so these two are left undefined for it.
    const auto is_plain = [](const Value& item) {
      return item.dict() == nullptr || !item.dict()->is_namespace;
    };
    if (i > 0 && is_plain(items[i - 1])) fields.emplace_back("previtem", items[i - 1]);
    if (i + 1 < items.size() && is_plain(items[i + 1])) fields.emplace_back("nextitem", items[i + 1]);
    return make_dict(std::move(fields));
  }

  void set(const Node& node, Value value) {
    budget_.spend(1);
    if (node.names.size() == 1) return assign(node.names[0], std::move(value));
    const Value target = look_up(node.names[0]);
    if (target.dict() == nullptr || !target.dict()->is_namespace)
      throw wrong(fmt::format("a set on '{}', which is no namespace", node.names[0]));
    (void)checked_depth(value);
    budget_.spend_look_up(target.dict()->items.size());
    target.dict()->put(node.names[1], std::move(value));
  }

  void assign(const std::string& name, Value value) {
    Scope& scope = scopes_.back();
    budget_.spend_look_up(scope.size());
    const auto entry =
        std::find_if(scope.begin(), scope.end(), [&](const auto& each) { return each.first == name; });
    if (entry == scope.end()) {
      scope.emplace_back(name, std::move(value));
    } else {
      entry->second = std::move(value);
    }
  }

  [[nodiscard]] Value look_up(std::string_view name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      budget_.spend_look_up(scope->size());
      for (const auto& [known, value] : *scope) {
        if (known == name) return value;
      }
    }
    constexpr std::array<std::string_view, 5> kGlobals = {"raise_exception", "strftime_now", "namespace",
                                                          "range", "dict"};
    if (std::find(kGlobals.begin(), kGlobals.end(), name) != kGlobals.end())
      return Function{std::string(name), nullptr, nullptr};
    return {};
  }

  // ---- expressions

  Value evaluate(const Node& node) {
    const Level level(*this);
    line_ = node.line;
    budget_.spend(1);
    switch (node.kind) {
      case NodeKind::kLiteral:
        return node.literal;
      case NodeKind::kName:
        return look_up(node.name);
      case NodeKind::kList:
        return make_list(evaluate_all(node, 0));
      case NodeKind::kDict:
        return evaluate_dict(node);
      case NodeKind::kItem: {
        const Value value = evaluate(*node.children[0]);
        if (value.text() != nullptr) budget_.spend_on(value);
        if (value.dict() != nullptr) budget_.spend_look_up(value.dict()->items.size());
        return item_of(value, evaluate(*node.children[1]));
      }
      case NodeKind::kAttribute: {
        const Value value = evaluate(*node.children[0]);
        if (value.dict() != nullptr) budget_.spend_look_up(value.dict()->items.size());
        return attribute_of(value, node.name);
      }
      case NodeKind::kSlice:
        return evaluate_slice(node);
      case NodeKind::kCall:
        return evaluate_call(node);
      case NodeKind::kFilter: {
        const Value value = evaluate(*node.children[0]);
        return apply_filter(node.name, value, arguments_of(node), budget_);
      }
      case NodeKind::kTest: {
        const Value value = evaluate(*node.children[0]);
        return apply_test(node.name, value, arguments_of(node), budget_);
      }
      default:
        return evaluate_operator(node);
    }
  }

  Value evaluate_operator(const Node& node) {
    const auto child = [&](std::size_t i) { return evaluate(*node.children[i]); };
    switch (node.kind) {
      case NodeKind::kNegate:
        return arithmetic("-", std::int64_t{0}, child(0), budget_);
      case NodeKind::kNot:
        return !is_true(child(0));
      case NodeKind::kAnd: {
        Value left = child(0);
        return is_true(left) ? child(1) : left;
      }
      case NodeKind::kOr: {
        Value left = child(0);
        return is_true(left) ? left : child(1);
      }
      case NodeKind::kArithmetic: {
        const Value left = child(0);
        return arithmetic(node.name, left, child(1), budget_);
      }
      case NodeKind::kConditional:
        if (is_true(child(1))) return child(0);
        return node.children[2] ? child(2) : Value();
      default:
        return evaluate_comparison(node);
    }
  }

  Value evaluate_comparison(const Node& node) {
    Value left = evaluate(*node.children[0]);
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      Value right = evaluate(*node.children[i + 1]);
      if (!compare(node.names[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  bool compare(std::string_view sign, const Value& a, const Value& b) {
    if (sign == "==") return equal(a, b, budget_);
    if (sign == "!=") return !equal(a, b, budget_);
    if (sign == "<") return less(a, b);
    if (sign == ">") return less(b, a);
    if (sign == "<=") return less(a, b) || equal(a, b, budget_);
    if (sign == ">=") return less(b, a) || equal(a, b, budget_);
    return contains(b, a, budget_) == (sign == "in");
  }

  std::vector<Value> evaluate_all(const Node& node, std::size_t from) {
    std::vector<Value> values;
    for (std::size_t i = from; i < node.children.size(); ++i) values.push_back(evaluate(*node.children[i]));
    return values;
  }

  Arguments arguments_of(const Node& node) {
    Arguments arguments{evaluate_all(node, 1), {}};
    for (const auto& [name, value] : node.named) arguments.named.emplace_back(name, evaluate(*value));
    return arguments;
  }

  Value evaluate_dict(const Node& node) {
    Scope items;
    for (std::size_t i = 0; i + 1 < node.children.size(); i += 2) {
      const Value key = evaluate(*node.children[i]);
      if (key.text() == nullptr) throw unsupported(fmt::format("{} as the key of a dict", kind_of(key)));
      items.emplace_back(key.text()->bytes(), evaluate(*node.children[i + 1]));
    }
    return make_dict(std::move(items));
  }

  Value evaluate_slice(const Node& node) {
    const Value value = evaluate(*node.children[0]);
    const auto bound = [&](std::size_t i) {
      return node.children[i] ? evaluate(*node.children[i]) : Value();
    };
    const Value begin = bound(1);
    const Value end = bound(2);
    const Value step = bound(3);
    budget_.spend_on(value);
    return slice_of(value, begin, end, step);
  }

  // ---- calls

  Value evaluate_call(const Node& node) {
    const Value callee = evaluate(*node.children[0]);
    const auto* function = callee.get<Function>();
    if (function == nullptr) {
      const std::string& name = node.children[0]->name;
      throw unsupported(name.empty() ? std::string("a call of what is no function")
                                     : fmt::format("the function {}", name));
    }
    const Arguments arguments = arguments_of(node);
    if (function->macro != nullptr) return call_macro(*function->macro, arguments);
    if (function->self) budget_.spend_on(*function->self);
    if (function->self) return call_method(*function, arguments, budget_);
    return call_global(function->name, arguments);
  }

  Value call_macro(const Node& macro, const Arguments& arguments) {
    if (arguments.positional.size() > macro.names.size())
      throw wrong(fmt::format("the macro {} takes {} arguments", macro.name, macro.names.size()));
    if (calls_ == kMaxCallDepth) throw wrong("macros call each other too deeply");
    Scope parameters;
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
      const Value* given = arguments.find(i, macro.names[i]);
      const auto preset = std::find_if(macro.named.begin(), macro.named.end(),
                                       [&](const auto& each) { return each.first == macro.names[i]; });
      Value value;
      if (given != nullptr) {
        value = *given;
      } else if (preset != macro.named.end()) {
        value = evaluate(*preset->second);
      }
      parameters.emplace_back(macro.names[i], std::move(value));
    }
    // A macro sees the template's own variables, not those of the place that calls it.
    std::vector<Scope> around(std::make_move_iterator(scopes_.begin() + 1),
                              std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.push_back(std::move(parameters));
    ++calls_;
    Value text = captured(*macro.children[0]);
    --calls_;
    scopes_.resize(1);
    scopes_.insert(scopes_.end(), std::make_move_iterator(around.begin()),
                   std::make_move_iterator(around.end()));
    return text;
  }

  Value call_global(std::string_view name, const Arguments& arguments) {
    if (name == "namespace" || name == "dict") {
      if (!arguments.positional.empty()) throw unsupported(fmt::format("{} with positional arguments", name));
      return make_dict(arguments.named, name == "namespace");
    }
    if (name == "range") return range(arguments);
    const Value* text = arguments.positional.size() == 1 ? arguments.positional.data() : nullptr;
    if (text == nullptr || text->text() == nullptr) throw wrong(fmt::format("{} needs one string", name));
    if (name == "raise_exception") throw Failure{Failure::Kind::kRefused, text->text()->bytes()};
    return formatted_time(text->text()->bytes());
  }

  Value range(const Arguments& arguments) {
    const std::vector<Value>& given = arguments.positional;
    if (given.empty() || given.size() > 3) throw wrong("range needs one to three numbers");
    const std::int64_t begin = given.size() == 1 ? 0 : given[0].integer();
    const std::int64_t end = given[given.size() == 1 ? 0 : 1].integer();
    const std::int64_t step = given.size() == 3 ? given[2].integer() : 1;
    if (step == 0) throw wrong("range with step 0");
    std::vector<Value> numbers;
    for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
      budget_.spend(1);
      numbers.emplace_back(at);
      if (__builtin_add_overflow(at, step, &at)) break;
    }
    return make_list(std::move(numbers));
  }

  Value formatted_time(const std::string& format) const {
    constexpr std::size_t kMaxTimeBytes = 512;
    std::tm local{};
    std::array<char, kMaxTimeBytes> text{};
    if (format.empty() || ::localtime_r(&now_, &local) == nullptr) return Text();
    const std::size_t length = std::strftime(text.data(), text.size(), format.c_str(), &local);
    return Text(std::string_view(text.data(), length));
  }

  std::time_t now_;
  std::vector<Scope> scopes_;
  Text out_;
  Budget budget_;
  std::uint32_t line_ = 0;
  std::uint32_t calls_ = 0;
  std::uint32_t levels_ = 0;
};

}  // namespace

Text render(const Node& tree, std::vector<std::pair<std::string, Value>> variables, std::time_t now) {
  return Renderer(std::move(variables), now).run(tree);
}

}  // namespace metrale::engine::jinja
