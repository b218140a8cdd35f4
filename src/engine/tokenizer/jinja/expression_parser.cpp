// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include <fmt/format.h>

namespace metrale::engine::jinja {
namespace {

// Of nodes in each other, and of calls of the parser in each other.
constexpr std::uint32_t kMaxTreeDepth = 200;

}  // namespace

ExpressionParser::Level::Level(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.level_ > kMaxTreeDepth) parser_.fail("parts are nested too deeply");
}

void ExpressionParser::fail(std::string message) const {
  throw FailureAt{{Failure::Kind::kUnsupported, std::move(message)}, here().line};
}

const Token& ExpressionParser::here(std::size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}
bool ExpressionParser::is_operator(std::string_view text, std::size_t ahead) const {
  return here(ahead).kind == TokenKind::kOperator && here(ahead).text == text;
}
bool ExpressionParser::is_name(std::string_view text, std::size_t ahead) const {
  return here(ahead).kind == TokenKind::kName && here(ahead).text == text;
}
bool ExpressionParser::accept(std::string_view text) {
  if (!is_operator(text)) return false;
  ++at_;
  return true;
}
bool ExpressionParser::accept_name(std::string_view text) {
  if (!is_name(text)) return false;
  ++at_;
  return true;
}
void ExpressionParser::need(std::string_view text) {
  if (!accept(text)) fail(fmt::format("'{}' instead of '{}'", here().text, text));
}
void ExpressionParser::need(TokenKind kind, std::string_view what) {
  if (here().kind != kind) fail(fmt::format("'{}' instead of {}", here().text, what));
  ++at_;
}
std::string ExpressionParser::name() {
  need(TokenKind::kName, "a name");
  return tokens_[at_ - 1].text;
}

NodePtr ExpressionParser::leaf(NodeKind kind) const {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = here().line;
  return node;
}
void ExpressionParser::add(Node& parent, NodePtr child) const {
  if (child) parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxTreeDepth) fail("parts are nested too deeply");
  parent.children.push_back(std::move(child));
}

NodePtr ExpressionParser::tuple() {
  NodePtr first = expression();
  if (!is_operator(",")) return first;
  NodePtr list = make(NodeKind::kList, std::move(first));
  while (accept(",")) add(*list, expression());
  return list;
}

NodePtr ExpressionParser::expression() {
  const Level level(*this);
  NodePtr value = disjunction();
  while (accept_name("if")) {
    NodePtr condition = disjunction();
    NodePtr other = accept_name("else") ? expression() : nullptr;
    value = make(NodeKind::kConditional, std::move(value), std::move(condition), std::move(other));
  }
  return value;
}

NodePtr ExpressionParser::disjunction() {
  NodePtr left = conjunction();
  while (accept_name("or")) left = make(NodeKind::kOr, std::move(left), conjunction());
  return left;
}

NodePtr ExpressionParser::conjunction() {
  NodePtr left = negation();
  while (accept_name("and")) left = make(NodeKind::kAnd, std::move(left), negation());
  return left;
}

NodePtr ExpressionParser::negation() {
  const Level level(*this);
  if (accept_name("not")) return make(NodeKind::kNot, negation());
  return comparison();
}

NodePtr ExpressionParser::comparison() {
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

template <class Operand>
NodePtr ExpressionParser::chain(std::initializer_list<std::string_view> signs, Operand operand) {
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
NodePtr ExpressionParser::sum() {
  return chain({"+", "-"}, [&] { return concatenation(); });
}
NodePtr ExpressionParser::concatenation() {
  return chain({"~"}, [&] { return product(); });
}
NodePtr ExpressionParser::product() {
  return chain({"*", "//", "/", "%"}, [&] { return power(); });
}
NodePtr ExpressionParser::power() {
  return chain({"**"}, [&] { return unary(true); });
}

NodePtr ExpressionParser::unary(bool with_filters) {
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

NodePtr ExpressionParser::literal(Value value) const {
  NodePtr node = leaf(NodeKind::kLiteral);
  node->literal = std::move(value);
  return node;
}

NodePtr ExpressionParser::primary() {
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
  if (token.kind == TokenKind::kOperator && token.text == "(") return in_brackets();
  if (token.kind == TokenKind::kOperator && token.text == "[") return list();
  if (token.kind == TokenKind::kOperator && token.text == "{") return dict();
  --at_;
  fail(fmt::format("'{}' where a value should be", token.text));
}

// Behind the opening one.
NodePtr ExpressionParser::in_brackets() {
  if (accept(")")) return leaf(NodeKind::kList);
  NodePtr inner = expression();
  if (is_operator(",")) {
    inner = make(NodeKind::kList, std::move(inner));
    while (accept(",") && !is_operator(")")) add(*inner, expression());
  }
  need(")");
  return inner;
}

NodePtr ExpressionParser::named_primary(const std::string& text) const {
  if (text == "true" || text == "True") return literal(true);
  if (text == "false" || text == "False") return literal(false);
  if (text == "none" || text == "None") return literal(None{});
  NodePtr node = leaf(NodeKind::kName);
  node->name = text;
  return node;
}

template <class Number>
Number ExpressionParser::number(const std::string& text) const {
  Number value = 0;
  const char* text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, value);
  if (error != std::errc{} || end != text_end) fail(fmt::format("the number {}", text));
  return value;
}

NodePtr ExpressionParser::list() {
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

NodePtr ExpressionParser::dict() {
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

NodePtr ExpressionParser::postfix(NodePtr node) {
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

NodePtr ExpressionParser::subscript(NodePtr value) {
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

void ExpressionParser::arguments(Node& call) {
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

NodePtr ExpressionParser::filtered(NodePtr node) {
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

NodePtr ExpressionParser::test(NodePtr value) {
  const bool negated = accept_name("not");
  NodePtr node = make(NodeKind::kTest, std::move(value));
  node->name = name();
  constexpr std::array<std::string_view, 6> kEnds = {"else", "or", "and", "is", "if", "not"};
  const bool is_operand = here().kind == TokenKind::kName || here().kind == TokenKind::kString ||
                          here().kind == TokenKind::kInteger || here().kind == TokenKind::kFloat ||
                          is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    arguments(*node);
  } else if (is_operand && std::none_of(kEnds.begin(), kEnds.end(), [&](auto end) { return is_name(end); })) {
    add(*node, postfix(primary()));
  }
  return negated ? make(NodeKind::kNot, std::move(node)) : std::move(node);
}

}  // namespace metrale::engine::jinja
