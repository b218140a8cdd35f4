// SPDX-License-Identifier: Apache-2.0
// The tree of a chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja/value.h"

namespace metrale::engine::jinja {

// What `name`, `names` and `children` hold, after each kind.
enum class NodeKind : std::uint8_t {
  // Expressions
  kLiteral,      // literal
  kName,         // name
  kList,         // items
  kDict,         // key, value, key, value, …
  kItem,         // value, key
  kAttribute,    // name; value
  kSlice,        // value, begin, end, step (each may be null but the value)
  kCall,         // function, arguments …; named
  kFilter,       // name; value, arguments …; named
  kTest,         // name; value, arguments …
  kNegate,       // value
  kNot,          // value
  kAnd,          // left, right
  kOr,           // left, right
  kArithmetic,   // name: + - * / // % ** ~; left, right
  kCompare,      // names: the operators between the children
  kConditional,  // value, condition, other value (may be null)
  // Statements
  kBlock,     // statements
  kData,      // literal
  kOutput,    // value
  kFor,       // names: targets; iterable, condition (may be null), block, else block (may be null)
  kIf,        // condition, block, condition, block, … and perhaps an else block
  kSet,       // names: variable, or namespace and attribute; value
  kSetBlock,  // names: variable; block
  kMacro,     // name; names: parameters; named: defaults; block
  kBreak,
  kContinue,
};

struct Node {
  NodeKind kind = NodeKind::kBlock;
  std::uint32_t line = 0;
  std::uint32_t depth = 1;
  std::string name;
  std::vector<std::string> names;
  Value literal;
  std::vector<std::unique_ptr<Node>> children;
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> named;
};
using NodePtr = std::unique_ptr<Node>;

// What Failure lacks: the line.
struct FailureAt {
  Failure failure;
  std::uint32_t line = 0;
};

// Reads a template as transformers does: trim_blocks and lstrip_blocks on, loop controls and generation
// blocks known. Throws FailureAt for what is no template or has parts that this engine does not know.
[[nodiscard]] NodePtr parse(std::string_view source);

}  // namespace metrale::engine::jinja
