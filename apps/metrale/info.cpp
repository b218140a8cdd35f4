// SPDX-License-Identifier: Apache-2.0
// metrale info: what a model directory or a safetensors file holds.
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/engine/decoder.h>
#include <metrale/engine/model_config.h>
#include <metrale/weights/model_directory.h>

#include "commands.h"
#include "exit_codes.h"
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

ordered_json describe_tensors(const weights::ModelDirectory& directory, bool list) {
  std::map<std::string, std::uint64_t> bytes_by_type;
  std::uint64_t parameters = 0;
  ordered_json tensors = ordered_json::array();
  for (const weights::TensorRef& tensor : directory.tensors()) {
    const weights::TensorInfo& info = tensor.info();
    bytes_by_type[std::string(weights::to_string(info.dtype))] += info.size_bytes;
    parameters += info.num_elems();
    if (!list) continue;
    tensors.push_back({{"name", info.name},
                       {"dtype", weights::to_string(info.dtype)},
                       {"shape", info.shape},
                       {"file", directory.file(tensor).path()},
                       {"offset", info.offset_bytes},
                       {"bytes", info.size_bytes}});
  }
  ordered_json result{{"tensor_count", directory.tensors().size()},
                      {"parameters", parameters},
                      {"bytes", directory.total_bytes()},
                      {"bytes_by_dtype", bytes_by_type}};
  if (list) result["tensors"] = std::move(tensors);
  return result;
}

std::string dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string as_text(const ordered_json& info) {
  std::string text;
  for (const auto& [name, value] : info.items()) {
    if (name == "tensors") continue;
    text += fmt::format("{:24} {}\n", name, value.is_string() ? value.get<std::string>() : dump(value));
  }
  for (const ordered_json& tensor : info.value("tensors", ordered_json::array())) {
    text += fmt::format("{:5} {:20} {}\n", tensor["dtype"].get<std::string>(), dump(tensor["shape"]),
                        dump(tensor["name"]));
  }
  return text;
}

}  // namespace

Action add_info(CLI::App& command) {
  struct Flags {
    std::string path;
    bool json = false;
    bool tensors = false;
  };
  const auto flags = std::make_shared<Flags>();
  command.add_option("path", flags->path, "Model directory or .safetensors file")->required();
  command.add_flag("--json", flags->json, "One JSON object");
  command.add_flag("--tensors", flags->tensors, "List every tensor");
  return [flags] {
    const weights::ModelDirectory directory = weights::ModelDirectory::open(flags->path);
    ordered_json info{{"path", flags->path}};
    if (std::filesystem::is_directory(flags->path)) {
      info.update(describe_config(engine::load_model_config(flags->path)));
    }
    info.update(describe_tensors(directory, flags->tensors));
    Output output("");
    output.write(flags->json ? dump(info) + "\n" : as_text(info));
    return kOk;
  };
}

}  // namespace metrale::app
