// SPDX-License-Identifier: Apache-2.0
#include "engine/rope_fields.h"

#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::engine {
namespace {

constexpr std::pair<std::string_view, RopeScalingKind> kKinds[] = {
    {"default", RopeScalingKind::kNone},    {"linear", RopeScalingKind::kLinear},
    {"dynamic", RopeScalingKind::kDynamic}, {"yarn", RopeScalingKind::kYarn},
    {"llama3", RopeScalingKind::kLlama3},
};

RopeScalingKind read_kind(const JsonFields& fields, const std::string& path) {
  const auto old_name = fields.text("type");
  if (old_name && fields.text("rope_type").value_or(*old_name) != *old_name) {
    fields.fail("type", "the same as rope_type, or nothing");
  }
  const bool is_silent = !old_name && !fields.text("rope_type");
  if (is_silent && fields.find("factor") != nullptr)
    fields.fail("rope_type", "the kind of scaling that factor is for");
  const std::string name = fields.text("rope_type").value_or(old_name.value_or("default"));
  for (const auto& [known, kind] : kKinds) {
    if (name == known) return kind;
  }
  throw Unsupported(fmt::format("'{}': this engine", path),
                    fmt::format("rope type \"{}\" (it has: default, linear, dynamic, yarn, llama3)", name));
}

void read_llama3(const JsonFields& fields, RopeScaling& scaling) {
  for (const char* name : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (fields.find(name) == nullptr) fields.fail(name, "a number");
  }
  scaling.low_freq_factor = fields.positive("low_freq_factor", 0);
  scaling.high_freq_factor = fields.positive("high_freq_factor", 0);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    fields.fail("high_freq_factor", "a number above low_freq_factor");
  }
}

// 0.1 · scale · ln(factor) + 1: the length-dependent temperature of the YaRN paper.
double yarn_temperature(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

void read_yarn(const JsonFields& fields, RopeScaling& scaling) {
  scaling.beta_fast = fields.positive("beta_fast", 32);
  scaling.beta_slow = fields.positive("beta_slow", 1);
  if (scaling.beta_fast < scaling.beta_slow) fields.fail("beta_fast", "a number of at least beta_slow");
  scaling.truncate = fields.boolean("truncate").value_or(true);
  const double mscale = fields.number("mscale").value_or(0);
  const double mscale_all_dim = fields.number("mscale_all_dim").value_or(0);
  const double implied =
      mscale != 0 && mscale_all_dim != 0
          ? yarn_temperature(scaling.factor, mscale) / yarn_temperature(scaling.factor, mscale_all_dim)
          : yarn_temperature(scaling.factor, 1);
  scaling.attention_factor = fields.positive("attention_factor", implied);
}

RopeScaling read_scaling(const JsonFields& fields, const std::string& path, std::uint32_t max_position) {
  RopeScaling scaling;
  scaling.kind = read_kind(fields, path);
  if (scaling.kind == RopeScalingKind::kNone) return scaling;
  scaling.factor = fields.number("factor").value_or(0);
  if (scaling.factor < 1) fields.fail("factor", "a number of at least 1");
  scaling.original_max_position = max_position;
  // Dynamic scaling counts from the model's own maximum, whatever this field says, as transformers does.
  if (scaling.kind == RopeScalingKind::kLlama3 || scaling.kind == RopeScalingKind::kYarn) {
    scaling.original_max_position = fields.count("original_max_position_embeddings").value_or(max_position);
  }
  if (scaling.kind == RopeScalingKind::kLlama3) read_llama3(fields, scaling);
  if (scaling.kind == RopeScalingKind::kYarn) read_yarn(fields, scaling);
  return scaling;
}

RopeConfig read_one(const JsonFields& fields, const std::string& path, std::optional<double> theta,
                    double default_theta, std::uint32_t max_position) {
  RopeConfig rope;
  rope.scaling = read_scaling(fields, path, max_position);
  rope.theta = fields.positive("rope_theta", theta.value_or(default_theta));
  if (theta && rope.theta != *theta)
    fields.fail("rope_theta", fmt::format("the {} beside it, or nothing", *theta));
  if (fields.number("partial_rotary_factor").value_or(1) != 1) fields.refuse("partial_rotary_factor");
  // Below 1 the pairs would turn ever faster, up to infinity; at 1 YaRN divides by its logarithm.
  if (rope.theta < 1 || (rope.theta == 1 && rope.scaling.kind == RopeScalingKind::kYarn)) {
    fields.fail("rope_theta", "a number of at least 1, above it for yarn");
  }
  return rope;
}

}  // namespace

LayerRopes read_rope(const JsonFields& fields, const std::string& path, double default_theta,
                     std::uint32_t max_position) {
  constexpr const char* kNames[] = {"rope_scaling", "rope_parameters"};
  const char* present = nullptr;
  for (const char* name : kNames) {
    const nlohmann::json* object = fields.find(name);
    if (object == nullptr) continue;
    if (!object->is_object()) fields.fail(name, "an object");
    if (present != nullptr && *fields.find(present) != *object) {
      fields.fail(name, fmt::format("what {} says too, or nothing", present));
    }
    present = name;
  }
  std::optional<double> theta;  // beside the object
  if (fields.find("rope_theta") != nullptr) theta = fields.positive("rope_theta", 1);
  if (theta && *theta < 1) fields.fail("rope_theta", "a number of at least 1");
  if (fields.number("partial_rotary_factor").value_or(1) != 1) fields.refuse("partial_rotary_factor");
  // Nothing said is what an empty object says.
  const nlohmann::json nothing = nlohmann::json::object();
  const JsonFields parameters = present != nullptr ? fields.object(present) : JsonFields(nothing, path);
  if (parameters.find("full_attention") == nullptr) {
    return {.whole = read_one(parameters, path, theta, default_theta, max_position), .local = {}};
  }
  LayerRopes ropes{.whole = read_one(parameters.object("full_attention"), path, {},
                                     theta.value_or(default_theta), max_position),
                   .local = {}};
  if (parameters.find("sliding_attention") != nullptr) {
    ropes.local = read_one(parameters.object("sliding_attention"), path, {}, theta.value_or(default_theta),
                           max_position);
  }
  return ropes;
}

}  // namespace metrale::engine
