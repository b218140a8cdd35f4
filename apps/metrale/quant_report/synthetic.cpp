// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "report.h"

namespace metrale::quant_report {

SyntheticErrors measure_synthetic(const SyntheticOptions& options, const Measurer& measurer,
                                  const std::function<void(std::size_t, std::size_t)>& progress) {
  const std::uint32_t head_dim = options.head_dim;
  const std::size_t total = kKinds.size() + kScenes.size();
  SyntheticErrors errors{.options = options, .nmse = {}, .attention = {}};
  for (const KindInfo& kind : kKinds) {
    progress(errors.nmse.size(), total);
    errors.nmse.push_back(measurer.nmse(
        head_dim, make_vectors(kind.kind, head_dim, options.vectors, options.seed, Draw::kErrors)));
  }
  const std::vector<float> values =
      make_vectors(Kind::kVLike, head_dim, options.keys, options.seed, Draw::kValues);
  for (const Scene& scene : kScenes) {
    progress(kKinds.size() + errors.attention.size(), total);
    const std::vector<float> keys =
        make_vectors(scene.keys, head_dim, options.keys, options.seed, Draw::kKeys);
    const std::vector<float> queries =
        make_queries(head_dim, options.queries, options.seed, keys, scene.whitened, kLogitStd);
    errors.attention.push_back(measurer
                                   .head({.head_dim = head_dim,
                                          .scale = 1 / std::sqrt(static_cast<double>(head_dim)),
                                          .queries = queries,
                                          .keys = keys,
                                          .values = values,
                                          .visible = {}})
                                   .attention);
  }
  return errors;
}

}  // namespace metrale::quant_report
