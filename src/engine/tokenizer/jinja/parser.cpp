// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>

#include <fmt/format.h>

#include "engine/tokenizer/jinja/ast.h"
#include "engine/tokenizer/jinja/lexer.h"

namespace metrale::engine::jinja {
namespace {

// Of nodes in each other, and of calls of the parser in each other.
constexpr std::uint32_t kMaxTreeDepth = 200;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  NodePtr run() {
    NodePtr block = statements({});
    if (here().kind != TokenKind::kEnd) fail("a tag that ends nothing");
    return block;
  }

 private:
  // One level of the parser's own recursion.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.level_ > kMaxTreeDepth) parser_.fail("parts are nested too deeply");
    }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail(std::string message) const {
    throw FailureAt{{Failure::Kind::kUnsupported, std::move(message)}, here().line};
  }

  [[nodiscard]] const Token& here(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  [[nodiscard]] bool is_operator(std::string_view text, std::size_t ahead = 0) const {
    return here(ahead).kind == TokenKind::kOperator && here(ahead).text == text;
  }
  [[nodiscard]] bool is_name(std::string_view text, std::size_t ahead = 0) const {
    return here(ahead).kind == TokenKind::kName && here(ahead).text == text;
  }
  bool accept(std::string_view text) {
    if (!is_operator(text)) return false;
    ++at_;
    return true;
  }
  bool accept_name(std::string_view text) {
    if (!is_name(text)) return false;
    ++at_;
    return true;
  }
  void need(std::string_view text) {
    if (!accept(text)) fail(fmt::format("'{}' instead of '{}'", here().text, text));
  }
  void need(TokenKind kind, std::string_view what) {
    if (here().kind != kind) fail(fmt::format("'{}' instead of {}", here().text, what));
    ++at_;
  }
  std::string name() {
    need(TokenKind::kName, "a name");
    return tokens_[at_ - 1].text;
  }

  [[nodiscard]] NodePtr leaf(NodeKind kind) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = here().line;
    return node;
  }
  void add(Node& parent, NodePtr child) {
    if (child) parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxTreeDepth) fail("parts are nested too deeply");
    parent.children.push_back(std::move(child));
  }
  template <class... Children>
  NodePtr make(NodeKind kind, Children... children) {
    NodePtr node = leaf(kind);
    (add(*node, std::move(children)), ...);
    return node;
  }

  // ---- statements

  // Until a tag of one of the names, whose name is the next token then.
  NodePtr statements(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    NodePtr block = leaf(NodeKind::kBlock);
    for (;;) {
      const Token& token = here();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() != 0) fail(fmt::format("the end of the template before '{}'", *(ends.end() - 1)));
        return block;
      }
      ++at_;
      if (token.kind == TokenKind::kData) {
        NodePtr data = leaf(NodeKind::kData);
        data->literal = Text(token.text);
        add(*block, std::move(data));
      } else if (token.kind == TokenKind::kOutputBegin) {
        add(*block, make(NodeKind::kOutput, tuple()));
        need(TokenKind::kOutputEnd, "'}}'");
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_name(end); }))
          return block;
        add(*block, statement());
      }
    }
  }

  void end_tag() { need(TokenKind::kTagEnd, "'%}'"); }

  NodePtr statement() {
    const std::string keyword = name();
    if (keyword == "for") return for_statement();
    if (keyword == "if") return if_statement();
    if (keyword == "set") return set_statement();
    if (keyword == "macro") return macro_statement();
    if (keyword == "generation") {
      end_tag();
      NodePtr block = statements({"endgeneration"});
      ++at_;
      end_tag();
      return block;
    }
    if (keyword == "break" || keyword == "continue") {
      NodePtr node = leaf(keyword == "break" ? NodeKind::kBreak : NodeKind::kContinue);
      if (loops_ == 0) fail(fmt::format("'{}' outside of a loop", keyword));
      end_tag();
      return node;
    }
    --at_;
    fail(fmt::format("the tag '{}'", keyword));
  }

  NodePtr for_statement() {
    NodePtr node = leaf(NodeKind::kFor);
    const bool in_brackets = accept("(");
    do {
      node->names.push_back(name());
    } while (accept(","));
    if (in_brackets) need(")");
    if (!accept_name("in")) fail("a for without 'in'");
    add(*node, disjunction());
    add(*node, accept_name("if") ? expression() : nullptr);
    if (is_name("recursive")) fail("a recursive for");
    end_tag();
    ++loops_;
    add(*node, statements({"else", "endfor"}));
    --loops_;
    NodePtr otherwise;
    if (accept_name("else")) {
      end_tag();
      otherwise = statements({"endfor"});
    }
    add(*node, std::move(otherwise));
    ++at_;
    end_tag();
    return node;
  }

  NodePtr if_statement() {
    NodePtr node = leaf(NodeKind::kIf);
    do {
      add(*node, tuple());
      end_tag();
      add(*node, statements({"elif", "else", "endif"}));
    } while (accept_name("elif"));
    if (accept_name("else")) {
      end_tag();
      add(*node, statements({"endif"}));
    }
    ++at_;
    end_tag();
    return node;
  }

  NodePtr set_statement() {
    NodePtr node = leaf(NodeKind::kSet);
    node->names.push_back(name());
    if (accept(".")) node->names.push_back(name());
    if (accept("=")) {
      add(*node, tuple());
      end_tag();
      return node;
    }
    if (here().kind != TokenKind::kTagEnd || node->names.size() != 1)
      fail("a set in another form than 'name = value'");
    end_tag();
    node->kind = NodeKind::kSetBlock;
    add(*node, statements({"endset"}));
    ++at_;
    end_tag();
    return node;
  }

  NodePtr macro_statement() {
    NodePtr node = leaf(NodeKind::kMacro);
    node->name = name();
    need("(");
    while (!accept(")")) {
      if (!node->names.empty()) need(",");
      node->names.push_back(name());
      if (accept("=")) {
        node->named.emplace_back(node->names.back(), expression());
      } else if (!node->named.empty()) {
        fail("a parameter without default behind one with");
      }
    }
    end_tag();
    const std::uint32_t loops_around = std::exchange(loops_, 0);
    add(*node, statements({"endmacro"}));
    loops_ = loops_around;
    ++at_;
    end_tag();
    return node;
  }

  // ---- expressions, weakest first

  // Values with commas between are a list.
  NodePtr tuple() {
    NodePtr first = expression();
    if (!is_operator(",")) return first;
    NodePtr list = make(NodeKind::kList, std::move(first));
    while (accept(",")) add(*list, expression());
    return list;
  }

  NodePtr expression() {
    const Level level(*this);
    NodePtr value = disjunction();
    while (accept_name("if")) {
      NodePtr condition = disjunction();
      NodePtr other = accept_name("else") ? expression() : nullptr;
      value = make(NodeKind::kConditional, std::move(value), std::move(condition), std::move(other));
    }
    return value;
  }

  NodePtr disjunction() {
    NodePtr left = conjunction();
    while (accept_name("or")) left = make(NodeKind::kOr, std::move(left), conjunction());
    return left;
  }

  NodePtr conjunction() {
    NodePtr left = negation();
    while (accept_name("and")) left = make(NodeKind::kAnd, std::move(left), negation());
    return left;
  }

  NodePtr negation() {
    const Level level(*this);
    if (accept_name("not")) return make(NodeKind::kNot, negation());
    return comparison();
  }

  NodePtr comparison() {
    NodePtr first = sum();
    NodePtr node;
    for (;;) {
      std::string sign;
      for (const std::string_view each : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (is_operator(each)) sign = each;
      }
      if (is_name("in")) sign = "in";
      if (is_name("not") && is_name("in", 1)) sign = "not in";
      if (sign.empty()) return node ? std::move(node) : std::move(first);
      at_ += sign == "not in" ? 2 : 1;
      if (!node) node = make(NodeKind::kCompare, std::move(first));
      node->names.push_back(sign);
      add(*node, sum());
    }
  }

  // A chain of operators of one strength, from the left.
  template <class Operand>
  NodePtr chain(std::initializer_list<std::string_view> signs, Operand operand) {
    NodePtr left = operand();
    for (;;) {
      const auto sign =
          std::find_if(signs.begin(), signs.end(), [&](std::string_view each) { return is_operator(each); });
      if (sign == signs.end()) return left;
      ++at_;
      left = make(NodeKind::kArithmetic, std::move(left), operand());
      left->name = *sign;
    }
  }
  NodePtr sum() {
    return chain({"+", "-"}, [&] { return concatenation(); });
  }
  NodePtr concatenation() {
    return chain({"~"}, [&] { return product(); });
  }
  NodePtr product() {
    return chain({"*", "//", "/", "%"}, [&] { return power(); });
  }
  NodePtr power() {
    return chain({"**"}, [&] { return unary(true); });
  }

  NodePtr unary(bool with_filters) {
    const Level level(*this);
    NodePtr node;
    if (accept("-")) {
      node = make(NodeKind::kNegate, unary(false));
    } else if (accept("+")) {
      node = unary(false);
    } else {
      node = postfix(primary());
    }
    return with_filters ? filtered(std::move(node)) : std::move(node);
  }

  NodePtr literal(Value value) {
    NodePtr node = leaf(NodeKind::kLiteral);
    node->literal = std::move(value);
    return node;
  }

  NodePtr primary() {
    const Token& token = here();
    ++at_;
    switch (token.kind) {
      case TokenKind::kName:
        return named_primary(token.text);
      case TokenKind::kString: {
        std::string text = token.text;
        while (here().kind == TokenKind::kString) text += tokens_[at_++].text;
        return literal(Text(text));
      }
      case TokenKind::kInteger:
        return literal(number<std::int64_t>(token.text));
      case TokenKind::kFloat:
        return literal(number<double>(token.text));
      default:
        break;
    }
    if (token.kind == TokenKind::kOperator && token.text == "(") {
      if (accept(")")) return leaf(NodeKind::kList);
      NodePtr inner = expression();
      if (is_operator(",")) {
        inner = make(NodeKind::kList, std::move(inner));
        while (accept(",") && !is_operator(")")) add(*inner, expression());
      }
      need(")");
      return inner;
    }
    if (token.kind == TokenKind::kOperator && token.text == "[") return list();
    if (token.kind == TokenKind::kOperator && token.text == "{") return dict();
    --at_;
    fail(fmt::format("'{}' where a value should be", token.text));
  }

  NodePtr named_primary(const std::string& text) {
    if (text == "true" || text == "True") return literal(true);
    if (text == "false" || text == "False") return literal(false);
    if (text == "none" || text == "None") return literal(None{});
    NodePtr node = leaf(NodeKind::kName);
    node->name = text;
    return node;
  }

  template <class Number>
  Number number(const std::string& text) const {
    Number value = 0;
    const char* text_end = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), text_end, value);
    if (error != std::errc{} || end != text_end) fail(fmt::format("the number {}", text));
    return value;
  }

  NodePtr list() {
    NodePtr node = leaf(NodeKind::kList);
    while (!accept("]")) {
      if (!node->children.empty()) {
        need(",");
        if (accept("]")) break;
      }
      add(*node, expression());
    }
    return node;
  }

  NodePtr dict() {
    NodePtr node = leaf(NodeKind::kDict);
    while (!accept("}")) {
      if (!node->children.empty()) {
        need(",");
        if (accept("}")) break;
      }
      add(*node, expression());
      need(":");
      add(*node, expression());
    }
    return node;
  }

  NodePtr postfix(NodePtr node) {
    for (;;) {
      if (accept(".")) {
        const bool is_index = here().kind == TokenKind::kInteger;
        if (is_index) fail("an attribute that is a number");
        node = make(NodeKind::kAttribute, std::move(node));
        node->name = name();
      } else if (accept("[")) {
        node = subscript(std::move(node));
      } else if (is_operator("(")) {
        node = make(NodeKind::kCall, std::move(node));
        arguments(*node);
      } else {
        return node;
      }
    }
  }

  NodePtr subscript(NodePtr value) {
    NodePtr begin = is_operator(":") ? nullptr : expression();
    if (begin && accept("]")) return make(NodeKind::kItem, std::move(value), std::move(begin));
    NodePtr slice = make(NodeKind::kSlice, std::move(value), std::move(begin));
    need(":");
    add(*slice, is_operator(":") || is_operator("]") ? nullptr : expression());
    NodePtr step;
    if (accept(":") && !is_operator("]")) step = expression();
    add(*slice, std::move(step));
    need("]");
    return slice;
  }

  void arguments(Node& call) {
    need("(");
    bool first = true;
    while (!accept(")")) {
      if (!first) {
        need(",");
        if (accept(")")) return;
      }
      first = false;
      if (is_operator("*") || is_operator("**")) fail("an unpacked argument");
      if (here().kind == TokenKind::kName && is_operator("=", 1)) {
        std::string key = name();
        ++at_;
        NodePtr value = expression();
        call.depth = std::max(call.depth, value->depth + 1);
        call.named.emplace_back(std::move(key), std::move(value));
      } else {
        if (!call.named.empty()) fail("a positional argument behind a named one");
        add(call, expression());
      }
    }
  }

  NodePtr filtered(NodePtr node) {
    for (;;) {
      if (accept("|")) {
        node = make(NodeKind::kFilter, std::move(node));
        node->name = name();
        if (is_operator("(")) arguments(*node);
      } else if (accept_name("is")) {
        node = test(std::move(node));
      } else if (is_operator("(")) {
        node = make(NodeKind::kCall, std::move(node));
        arguments(*node);
      } else {
        return node;
      }
    }
  }

  NodePtr test(NodePtr value) {
    const bool negated = accept_name("not");
    NodePtr node = make(NodeKind::kTest, std::move(value));
    node->name = name();
    constexpr std::array<std::string_view, 6> kEnds = {"else", "or", "and", "is", "if", "not"};
    const bool is_operand = here().kind == TokenKind::kName || here().kind == TokenKind::kString ||
                            here().kind == TokenKind::kInteger || here().kind == TokenKind::kFloat ||
                            is_operator("[") || is_operator("{");
    if (is_operator("(")) {
      arguments(*node);
    } else if (is_operand &&
               std::none_of(kEnds.begin(), kEnds.end(), [&](auto end) { return is_name(end); })) {
      add(*node, postfix(primary()));
    }
    return negated ? make(NodeKind::kNot, std::move(node)) : std::move(node);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::uint32_t level_ = 0;
  std::uint32_t loops_ = 0;
};

}  // namespace

NodePtr parse(std::string_view source) {
  return Parser(tokenize(source)).run();
}

}  // namespace metrale::engine::jinja
