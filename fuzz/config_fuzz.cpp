// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: engine
// A config.json: refused with a typed error, or a configuration that holds together.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <metrale/base/error.h>
#include <metrale/engine/model_config.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using metrale::engine::ModelConfig;
  try {
    const ModelConfig config = metrale::engine::parse_model_config(
        std::string(reinterpret_cast<const char*>(data), size), "config.json");
    const bool sound = config.num_kv_heads != 0 && config.num_q_heads % config.num_kv_heads == 0 &&
                       config.head_dim % 2 == 0 && config.head_dim <= 512 && config.rms_norm_eps > 0;
    if (!sound) std::abort();
    if (config.layer_windows.size() != config.num_layers) std::abort();
    for (const float frequency : metrale::engine::rope_inverse_frequencies(config.rope, config.head_dim)) {
      if (!std::isfinite(frequency)) std::abort();
    }
  } catch (const metrale::Error&) {
    // Refused; a std::exception of any other kind ends the fuzzer.
  }
  return 0;
}
