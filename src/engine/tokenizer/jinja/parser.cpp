// SPDX-License-Identifier: Apache-2.0
// The statements of a template.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "engine/tokenizer/jinja/ast.h"
#include "engine/tokenizer/jinja/expression_parser.h"
#include "engine/tokenizer/jinja/lexer.h"

namespace metrale::engine::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  NodePtr run() {
    NodePtr block = statements({});
    if (in_.here().kind != TokenKind::kEnd) in_.fail("a tag that ends nothing");
    return block;
  }

 private:
  // Until a tag of one of the names, whose name is the next token then.
  NodePtr statements(std::initializer_list<std::string_view> ends) {
    const ExpressionParser::Level level(in_);
    NodePtr block = in_.leaf(NodeKind::kBlock);
    for (;;) {
      const Token& token = in_.here();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() != 0) in_.fail(fmt::format("the end of the template before '{}'", *(ends.end() - 1)));
        return block;
      }
      in_.advance();
      if (token.kind == TokenKind::kData) {
        NodePtr data = in_.leaf(NodeKind::kData);
        data->literal = Text(token.text);
        in_.add(*block, std::move(data));
      } else if (token.kind == TokenKind::kOutputBegin) {
        in_.add(*block, in_.make(NodeKind::kOutput, in_.tuple()));
        in_.need(TokenKind::kOutputEnd, "'}}'");
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return in_.is_name(end); }))
          return block;
        in_.add(*block, statement());
      }
    }
  }

  void end_tag() { in_.need(TokenKind::kTagEnd, "'%}'"); }

  NodePtr statement() {
    const std::string keyword = in_.name();
    if (keyword == "for") return for_statement();
    if (keyword == "if") return if_statement();
    if (keyword == "set") return set_statement();
    if (keyword == "macro") return macro_statement();
    if (keyword == "generation") {
      end_tag();
      NodePtr block = statements({"endgeneration"});
      in_.advance();
      end_tag();
      return block;
    }
    if (keyword == "break" || keyword == "continue") {
      NodePtr node = in_.leaf(keyword == "break" ? NodeKind::kBreak : NodeKind::kContinue);
      if (loops_ == 0) in_.fail(fmt::format("'{}' outside of a loop", keyword));
      end_tag();
      return node;
    }
    in_.step_back();
    in_.fail(fmt::format("the tag '{}'", keyword));
  }

  NodePtr for_statement() {
    NodePtr node = in_.leaf(NodeKind::kFor);
    const bool in_brackets = in_.accept("(");
    do {
      node->names.push_back(in_.name());
    } while (in_.accept(","));
    if (in_brackets) in_.need(")");
    if (!in_.accept_name("in")) in_.fail("a for without 'in'");
    in_.add(*node, in_.disjunction());
    in_.add(*node, in_.accept_name("if") ? in_.expression() : nullptr);
    if (in_.is_name("recursive")) in_.fail("a recursive for");
    end_tag();
    ++loops_;
    in_.add(*node, statements({"else", "endfor"}));
    --loops_;
    NodePtr otherwise;
    if (in_.accept_name("else")) {
      end_tag();
      otherwise = statements({"endfor"});
    }
    in_.add(*node, std::move(otherwise));
    in_.advance();
    end_tag();
    return node;
  }

  NodePtr if_statement() {
    NodePtr node = in_.leaf(NodeKind::kIf);
    do {
      in_.add(*node, in_.tuple());
      end_tag();
      in_.add(*node, statements({"elif", "else", "endif"}));
    } while (in_.accept_name("elif"));
    if (in_.accept_name("else")) {
      end_tag();
      in_.add(*node, statements({"endif"}));
    }
    in_.advance();
    end_tag();
    return node;
  }

  NodePtr set_statement() {
    NodePtr node = in_.leaf(NodeKind::kSet);
    node->names.push_back(in_.name());
    if (in_.accept(".")) node->names.push_back(in_.name());
    if (in_.accept("=")) {
      in_.add(*node, in_.tuple());
      end_tag();
      return node;
    }
    if (in_.here().kind != TokenKind::kTagEnd || node->names.size() != 1)
      in_.fail("a set in another form than 'name = value'");
    end_tag();
    node->kind = NodeKind::kSetBlock;
    in_.add(*node, statements({"endset"}));
    in_.advance();
    end_tag();
    return node;
  }

  NodePtr macro_statement() {
    NodePtr node = in_.leaf(NodeKind::kMacro);
    node->name = in_.name();
    in_.need("(");
    while (!in_.accept(")")) {
      if (!node->names.empty()) in_.need(",");
      node->names.push_back(in_.name());
      if (in_.accept("=")) {
        node->named.emplace_back(node->names.back(), in_.expression());
      } else if (!node->named.empty()) {
        in_.fail("a parameter without default behind one with");
      }
    }
    end_tag();
    const std::uint32_t loops_around = std::exchange(loops_, 0);
    in_.add(*node, statements({"endmacro"}));
    loops_ = loops_around;
    in_.advance();
    end_tag();
    return node;
  }

  ExpressionParser in_;
  std::uint32_t loops_ = 0;
};

}  // namespace

NodePtr parse(std::string_view source) {
  return Parser(tokenize(source)).run();
}

}  // namespace metrale::engine::jinja
