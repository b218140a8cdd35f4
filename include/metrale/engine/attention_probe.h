// SPDX-License-Identifier: Apache-2.0
// AttentionProbe: sees what the attention of a model works on, while a Decoder runs it. For measuring KV
// formats and calibrating them.
#pragma once

#include <cstdint>
#include <span>

namespace metrale::engine {

class AttentionProbe {
 public:
  AttentionProbe() = default;
  virtual ~AttentionProbe() = default;
  AttentionProbe(const AttentionProbe&) = delete;
  AttentionProbe& operator=(const AttentionProbe&) = delete;

  // Called once a layer and step, in order, on the caller's thread of Decoder::run, with the step's queries,
  // keys and values as attention takes them: normalised and turned by their positions, not rotated.
  // qkv: [tokens][num_q_heads + 2 num_kv_heads][head_dim], in the order q, k, v; valid during the call.
  void take(std::uint32_t layer, std::uint32_t tokens, std::span<const float> qkv) {
    do_take(layer, tokens, qkv);
  }

 private:
  virtual void do_take(std::uint32_t layer, std::uint32_t tokens, std::span<const float> qkv) = 0;
};

}  // namespace metrale::engine
