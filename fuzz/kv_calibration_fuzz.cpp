// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: engine
// Any bytes as a KV calibration: refused with a typed error, or one that holds together and that its own text
// gives again.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <metrale/base/error.h>
#include <metrale/engine/kv_calibration.h>

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void require_floats(const std::vector<float>& floats, std::size_t count, bool positive) {
  require(floats.empty() || floats.size() == count);
  for (const float value : floats) require(std::isfinite(value) && (!positive || value > 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace metrale::engine;
  try {
    const KvCalibration calibration =
        parse_kv_calibration(std::string(reinterpret_cast<const char*>(data), size), "input");
    const std::size_t channels = std::size_t{calibration.num_kv_heads} * calibration.head_dim;
    require(!calibration.layers.empty() && channels != 0);
    for (const KvLayerCalibration& layer : calibration.layers) {
      require(layer.k_range.size() == calibration.num_kv_heads);
      require(layer.v_range.size() == calibration.num_kv_heads);
      require_floats(layer.k_range, calibration.num_kv_heads, true);
      require_floats(layer.v_range, calibration.num_kv_heads, true);
      require_floats(layer.k_mean, channels, false);
      require_floats(layer.k_equaliser, channels, true);
      require_floats(layer.v_equaliser, channels, true);
    }
    require(parse_kv_calibration(to_json(calibration), "again") == calibration);
  } catch (const metrale::Error&) {
    // Refused; a std::exception of any other kind ends the fuzzer.
  }
  return 0;
}
