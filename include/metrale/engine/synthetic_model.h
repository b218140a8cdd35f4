// SPDX-License-Identifier: Apache-2.0
// Synthetic models: directories as people download them, with the shapes of well-known models and seeded
// random weights. For measuring, planning and testing where the real weights are not at hand.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <metrale/quant/element_type.h>

namespace metrale::engine {

struct SyntheticModel {
  std::string architecture = "llama";  // llama, qwen3, mistral
  std::string like = "tiny";           // tiny, 1b, 8b
  std::uint64_t seed = 0;
  quant::ElementType dtype = quant::ElementType::kBf16;
};

// The text of its config.json, as Hugging Face writes it. Throws InvalidArgument naming what there is.
//   llama    1b: Llama-3.2-1B; 8b: Llama-3.1-8B
//   qwen3    1b: Qwen3-1.7B; 8b: Qwen3-8B
//   mistral  1b: Mistral-7B-v0.1 at half the width and 20 layers; 8b: Mistral-7B-v0.1
//   tiny     two layers of 64, 512 tokens
// Token ids are those of the synthetic tokenizer: BOS 256, EOS 257.
[[nodiscard]] std::string synthetic_config_json(const SyntheticModel& model);

// A byte-level tokenizer.json: token b < 256 is byte b, 256 and 257 begin and end a text, the rest up to
// `vocab_size` are fillers that no text encodes to. At least 258.
[[nodiscard]] std::string synthetic_tokenizer_json(std::uint32_t vocab_size, bool adds_bos);
// The tokenizer_config.json beside it.
[[nodiscard]] std::string synthetic_tokenizer_config_json();

struct SynthesisOptions {
  std::uint64_t max_shard_bytes = std::uint64_t{5} << 30;  // of tensors in one file; a larger one has its own
  unsigned threads = 0;                                    // 0: one for each usable processor
  // Called with the bytes of weights written so far and in all; a false return stops with Cancelled.
  std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress;
};

// Blocking. Writes config.json, generation_config.json, tokenizer.json and the tensors that the engine needs
// for that configuration: model.safetensors, or numbered shards with model.safetensors.index.json. Matrices
// are normal with variance 1 / columns, norms 1 +- 0.1, biases small. A value depends on the seed, the
// tensor's name and its place only, so the same model is the same bytes whatever the threads and shards.
//
// `directory` is made where it is absent, and must be empty else. Everything is written in a folder inside
// it and moved up at the end, config.json last; after a failure nothing is left, nor the directory if it was
// not there. Throws InvalidArgument (a directory that is not empty, a model that is not known), IoError (also
// before anything is written, where the disk has too little room), Unsupported (an architecture that this
// engine does not have), Cancelled.
void write_synthetic_model(const std::string& directory, const SyntheticModel& model,
                           const SynthesisOptions& options);

}  // namespace metrale::engine
