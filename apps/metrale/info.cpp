// SPDX-License-Identifier: Apache-2.0
// metrale info: what a model directory or a safetensors file holds.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/checked.h>
#include <metrale/engine/decoder.h>
#include <metrale/engine/model_config.h>
#include <metrale/weights/model_directory.h>

#include "commands.h"
#include "exit_codes.h"
#include "glob.h"
#include "output.h"

namespace metrale::app {
namespace {

using nlohmann::ordered_json;

ordered_json describe_config(const engine::ModelConfig& config) {
  const auto bf16 = quant::KvFormat::kBf16;
  return {{"architecture", config.architecture},
          {"layers", config.num_layers},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"query_heads", config.num_q_heads},
          {"kv_heads", config.num_kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.max_position_embeddings},
          {"tied_embeddings", config.tie_word_embeddings},
          {"kv_bytes_per_token_bf16", engine::kv_config(config, 16, {bf16, bf16}).bytes_per_token()}};
}

struct InfoFlags {
  std::string path;
  bool json = false;
  bool tensors = false;
  std::vector<std::string> match;
};

struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t bytes = 0;

  void add(const weights::TensorInfo& info) {
    ++tensors;
    parameters = checked_add(parameters, info.num_elems());
    bytes = checked_add(bytes, info.size_bytes);
  }
};

bool is_wanted(const InfoFlags& flags, const std::string& name) {
  return flags.match.empty() ||
         std::any_of(flags.match.begin(), flags.match.end(),
                     [&](const std::string& pattern) { return matches_glob(pattern, name); });
}

// Of the tensors whose names match.
ordered_json describe_tensors(const weights::ModelDirectory& directory, const InfoFlags& flags) {
  std::map<std::string, Totals> by_dtype;
  Totals all;
  ordered_json tensors = ordered_json::array();
  for (const weights::TensorRef& tensor : directory.tensors()) {
    const weights::TensorInfo& info = tensor.info();
    if (!is_wanted(flags, info.name)) continue;
    all.add(info);
    by_dtype[std::string(weights::to_string(info.dtype))].add(info);
    if (!flags.tensors) continue;
    tensors.push_back({{"name", info.name},
                       {"dtype", weights::to_string(info.dtype)},
                       {"shape", info.shape},
                       {"file", directory.file(tensor).path()},
                       {"offset", info.offset_bytes},
                       {"bytes", info.size_bytes}});
  }
  ordered_json dtypes = ordered_json::object();
  ordered_json bytes_by_dtype = ordered_json::object();
  for (const auto& [dtype, totals] : by_dtype) {
    bytes_by_dtype[dtype] = totals.bytes;
    dtypes[dtype] = {{"tensors", totals.tensors}, {"parameters", totals.parameters}, {"bytes", totals.bytes}};
  }
  ordered_json result{{"files", directory.files().size()},
                      {"tensor_count", all.tensors},
                      {"parameters", all.parameters},
                      {"bytes", all.bytes},
                      {"bytes_by_dtype", std::move(bytes_by_dtype)},
                      {"dtypes", std::move(dtypes)}};
  if (flags.tensors) result["tensors"] = std::move(tensors);
  return result;
}

std::string dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string tensor_lines(const ordered_json& tensors) {
  std::string text =
      fmt::format("\n{:12} {:20} {:>14} {:>14} {}\n", "dtype", "shape", "bytes", "offset", "file: name");
  for (const ordered_json& tensor : tensors) {
    const auto file = std::filesystem::path(tensor["file"].get<std::string>()).filename().string();
    text += fmt::format("{:12} {:20} {:>14} {:>14} {}: {}\n", tensor["dtype"].get<std::string>(),
                        dump(tensor["shape"]), tensor["bytes"].get<std::uint64_t>(),
                        tensor["offset"].get<std::uint64_t>(), weights::printable_name(file),
                        dump(tensor["name"]));
  }
  return text;
}

std::string as_text(const ordered_json& info) {
  std::string text;
  for (const auto& [name, value] : info.items()) {
    if (name == "tensors" || name == "bytes_by_dtype") continue;
    if (name != "dtypes") {
      text += fmt::format("{:24} {}\n", name, value.is_string() ? value.get<std::string>() : dump(value));
      continue;
    }
    for (const auto& [dtype, totals] : value.items()) {
      text += fmt::format("{:24} {} tensors, {} parameters, {} bytes\n", dtype,
                          totals["tensors"].get<std::uint64_t>(), totals["parameters"].get<std::uint64_t>(),
                          totals["bytes"].get<std::uint64_t>());
    }
  }
  if (info.contains("tensors")) text += tensor_lines(info["tensors"]);
  return text;
}

}  // namespace

Action add_info(CLI::App& command) {
  const auto flags = std::make_shared<InfoFlags>();
  command.add_option("path", flags->path, "Model directory or .safetensors file")->required();
  command.add_flag("--json", flags->json, "One JSON object");
  command.add_flag("--tensors", flags->tensors, "List every tensor");
  command.add_option("--match", flags->match,
                     "Only tensors of this name, with * and ?, such as '*.mlp.*'; may be repeated");
  return [flags] {
    const weights::ModelDirectory directory = weights::ModelDirectory::open(flags->path);
    ordered_json info{{"path", flags->path}};
    // Weights alone have no configuration, and are described too.
    if (std::filesystem::is_directory(flags->path) && directory.path_of("config.json")) {
      info.update(describe_config(engine::load_model_config(flags->path)));
    }
    info.update(describe_tensors(directory, *flags));
    Output output("");
    output.write(flags->json ? dump(info) + "\n" : as_text(info));
    return kOk;
  };
}

}  // namespace metrale::app
