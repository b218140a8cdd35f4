// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/regex.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <new>

#include <fmt/format.h>
#include <pcre2.h>

#include <metrale/base/error.h>

#include "engine/tokenizer/regex_dialect.h"

namespace metrale::engine {
namespace {

constexpr std::size_t kMaxPatternBytes = std::size_t{16} << 10;
constexpr std::uint64_t kBaseSteps = 1'000'000;
constexpr std::uint64_t kStepsPerByte = 16;
// What a match may hold to come back to, in the JIT and in the interpreter.
constexpr std::size_t kFirstStackBytes = std::size_t{256} << 10;
constexpr std::size_t kMaxStackBytes = std::size_t{64} << 20;
constexpr std::uint32_t kHeapLimitKib = 256U << 10;

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const noexcept { pcre2_compile_context_free(context); }
};

template <typename T>
T* allocated(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

void Regex::FreeCode::operator()(void* code) const noexcept {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

Regex::Regex(std::string_view shown, std::string_view pattern, unsigned extra_options, std::string_view where)
    : pattern_(shown) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Unsupported(where,
                      fmt::format("a pattern of {} bytes; {} at most", pattern.size(), kMaxPatternBytes));
  }
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      allocated(pcre2_compile_context_create(nullptr)));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | extra_options, &error, &offset,
                                   context.get());
  if (code == nullptr)
    throw Unsupported(where, fmt::format("the pattern '{}': {}", shown, message_of(error)));
  code_.reset(code);
  // Where the machine forbids executable memory, matching falls back to the interpreter by itself.
  static_cast<void>(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE));
}

Regex Regex::from_oniguruma(std::string_view pattern, std::string_view where) {
  return {pattern, pcre2_from_oniguruma(pattern, where), PCRE2_UCP | PCRE2_MULTILINE, where};
}
Regex Regex::from_literal(std::string_view text, std::string_view where) {
  return {text, text, PCRE2_LITERAL, where};
}
Regex Regex::from_pcre2(std::string_view pattern) {
  return {pattern, pattern, PCRE2_UCP, "the tokenizer"};
}

void RegexMatcher::Free::operator()(void* state) const noexcept {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(state));
}
void RegexMatcher::FreeContext::operator()(void* context) const noexcept {
  pcre2_match_context_free(static_cast<pcre2_match_context*>(context));
}

void RegexMatcher::FreeStack::operator()(void* stack) const noexcept {
  pcre2_jit_stack_free(static_cast<pcre2_jit_stack*>(stack));
}

void RegexMatcher::give_larger_stack() {
  stack_.reset(allocated(pcre2_jit_stack_create(kFirstStackBytes, kMaxStackBytes, nullptr)));
  pcre2_jit_stack_assign(static_cast<pcre2_match_context*>(context_.get()), nullptr, stack_.get());
}

RegexMatcher::RegexMatcher()
    : match_(allocated(pcre2_match_data_create(1, nullptr))),
      context_(allocated(pcre2_match_context_create(nullptr))) {
  pcre2_set_heap_limit(static_cast<pcre2_match_context*>(context_.get()), kHeapLimitKib);
}

std::optional<TextRange> RegexMatcher::find(const Regex& regex, std::string_view text, std::size_t from) {
  const auto* code = static_cast<const pcre2_code*>(regex.code_.get());
  auto* match = static_cast<pcre2_match_data*>(match_.get());
  auto* context = static_cast<pcre2_match_context*>(context_.get());
  const std::uint64_t steps = std::min<std::uint64_t>(kBaseSteps + kStepsPerByte * text.size(),
                                                      std::numeric_limits<std::uint32_t>::max());
  pcre2_set_match_limit(context, static_cast<std::uint32_t>(steps));
  int result = pcre2_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, match, context);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT && !stack_) {
    give_larger_stack();
    result = pcre2_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, match, context);
  }
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw InvalidArgument(fmt::format("the tokenizer's pattern '{}' fails at byte {} of a {}-byte text: {}",
                                      regex.pattern(), from, text.size(), message_of(result)));
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
  return TextRange{range[0], range[1]};
}

std::string replace_matches(const Regex& regex, std::string_view text, std::string_view content) {
  RegexMatcher matcher;
  std::string out;
  std::size_t done = 0;
  for_each_match(regex, matcher, text, [&](std::size_t begin, std::size_t end) {
    out.append(text.substr(done, begin - done)).append(content);
    done = end;
  });
  return out.append(text.substr(done));
}

}  // namespace metrale::engine
