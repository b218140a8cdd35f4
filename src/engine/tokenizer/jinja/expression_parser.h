// SPDX-License-Identifier: Apache-2.0
// Reads the expressions of a template's tags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja/ast.h"
#include "engine/tokenizer/jinja/lexer.h"

namespace metrale::engine::jinja {

// A place in the tokens of a template, and what reads expressions from there. Everything throws FailureAt.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // ---- the place

  [[noreturn]] void fail(std::string message) const;
  [[nodiscard]] const Token& here(std::size_t ahead = 0) const;
  void advance() { ++at_; }
  void step_back() { --at_; }
  [[nodiscard]] bool is_operator(std::string_view text, std::size_t ahead = 0) const;
  [[nodiscard]] bool is_name(std::string_view text, std::size_t ahead = 0) const;
  // Passes the token where it is this one.
  bool accept(std::string_view text);
  bool accept_name(std::string_view text);
  // Passes the token, which must be this one.
  void need(std::string_view text);
  void need(TokenKind kind, std::string_view what);
  std::string name();

  // ---- the tree

  [[nodiscard]] NodePtr leaf(NodeKind kind) const;
  void add(Node& parent, NodePtr child) const;
  template <class... Children>
  NodePtr make(NodeKind kind, Children... children) const {
    NodePtr node = leaf(kind);
    (add(*node, std::move(children)), ...);
    return node;
  }
  // One level of recursion.
  class Level {
   public:
    explicit Level(ExpressionParser& parser);
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExpressionParser& parser_;
  };

  // ---- expressions

  // Values with commas between are a list.
  NodePtr tuple();
  NodePtr expression();
  // An expression that is no "a if b else c".
  NodePtr disjunction();

 private:
  NodePtr conjunction();
  NodePtr negation();
  NodePtr comparison();
  // A chain of operators of one strength, from the left.
  template <class Operand>
  NodePtr chain(std::initializer_list<std::string_view> signs, Operand operand);
  NodePtr sum();
  NodePtr concatenation();
  NodePtr product();
  NodePtr power();
  NodePtr unary(bool with_filters);
  NodePtr literal(Value value) const;
  NodePtr primary();
  NodePtr in_brackets();
  NodePtr named_primary(const std::string& text) const;
  template <class Number>
  Number number(const std::string& text) const;
  NodePtr list();
  NodePtr dict();
  NodePtr postfix(NodePtr node);
  NodePtr subscript(NodePtr value);
  void arguments(Node& call);
  NodePtr filtered(NodePtr node);
  NodePtr test(NodePtr value);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::uint32_t level_ = 0;
};

}  // namespace metrale::engine::jinja
