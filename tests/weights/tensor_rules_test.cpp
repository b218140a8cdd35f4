// SPDX-License-Identifier: Apache-2.0
// Which tensors are loaded, which are left for later and which nobody wants; extra weights.
#include <support/temp_dir.h>

#include <gmock/gmock.h>

#include <metrale/weights/safetensors_writer.h>
#include <metrale/weights/tensor_rules.h>

namespace metrale::weights {
namespace {

using testing::ElementsAre;

TEST(TensorRules, WithoutRulesEverythingIsLoaded) {
  const TensorRules rules;
  for (const char* name :
       {"model.layers.0.mlp.experts.7.up_proj.weight", "mtp.0.weight", "visual.x", "a.input_scale", ""}) {
    EXPECT_EQ(rules.fate(name), TensorFate::kLoad) << name;
  }
}

TEST(TensorRules, ActivationScalesAreThoseAtTheEndOfAName) {
  const TensorRules rules{.skip_activation_scales = true};
  EXPECT_EQ(rules.fate("model.layers.0.mlp.up_proj.input_scale"), TensorFate::kSkip);
  EXPECT_EQ(rules.fate("model.layers.0.mlp.up_proj.activation_scale"), TensorFate::kSkip);
  EXPECT_EQ(rules.fate("model.layers.0.mlp.up_proj.weight_scale"), TensorFate::kLoad);
  EXPECT_EQ(rules.fate("model.input_scale_net.weight"), TensorFate::kLoad);
}

TEST(TensorRules, DraftLayersAndVisionAreThoseAtTheBeginning) {
  const TensorRules rules{.skip_draft_layers = true, .skip_vision = true};
  for (const char* name : {"mtp.layers.0.weight", "model.mtp.0.weight", "visual.blocks.0.weight",
                           "model.visual.merger.weight", "model.vision_tower.x", "vision_tower.x"}) {
    EXPECT_EQ(rules.fate(name), TensorFate::kSkip) << name;
  }
  for (const char* name : {"model.layers.0.visualise", "model.layers.0.mtp.weight", "lm_head.weight"}) {
    EXPECT_EQ(rules.fate(name), TensorFate::kLoad) << name;
  }
}

TEST(TensorRules, TheExpertIsTheNumberBehindExperts) {
  EXPECT_EQ(expert_of("model.layers.3.mlp.experts.17.up_proj.weight"), 17U);
  EXPECT_EQ(expert_of("experts.0"), 0U);
  for (const char* name :
       {"model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.shared_experts.1.weight",
        "model.experts.all.weight", "model.experts.3x.weight", "experts.", "experts.99999999999.weight"}) {
    EXPECT_EQ(expert_of(name), std::nullopt) << name;
  }
}

TEST(TensorRules, ExpertsOfOthersAreSkippedAndAllElseIsLoaded) {
  const TensorRules rules{.experts = ExpertRange{8, 16}};
  EXPECT_EQ(rules.fate("l.experts.7.w"), TensorFate::kSkip);
  EXPECT_EQ(rules.fate("l.experts.8.w"), TensorFate::kLoad);
  EXPECT_EQ(rules.fate("l.experts.15.w"), TensorFate::kLoad);
  EXPECT_EQ(rules.fate("l.experts.16.w"), TensorFate::kSkip);
  EXPECT_EQ(rules.fate("l.shared_experts.1.w"), TensorFate::kLoad);
}

std::string write(const TempDir& dir, const std::string& file,
                  const std::vector<std::pair<std::string, std::string>>& tensors) {
  std::vector<TensorData> data;
  for (const auto& [name, bytes] : tensors) {
    data.push_back({name, DType::kU8, {bytes.size()}, std::as_bytes(std::span(bytes))});
  }
  write_safetensors(dir.file(file), data);
  return dir.file(file);
}

std::string read(const ModelDirectory& directory, const std::string& name) {
  const TensorRef* tensor = directory.find(name);
  if (tensor == nullptr) return "(absent)";
  std::string bytes(tensor->info().size_bytes, ' ');
  directory.read(*tensor, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(TensorRules, DeferredTensorsKeepTheirPlace) {
  const TempDir dir;
  const std::string path =
      write(dir, "model.safetensors", {{"a.ngram.table", "NGRAM"}, {"b", "BB"}, {"mtp.c", "C"}});
  const auto directory = ModelDirectory::open(dir.path());
  const TensorSelection selection =
      select_tensors(directory, {.skip_draft_layers = true, .defer_containing = {".ngram."}});
  ASSERT_EQ(selection.load.size(), 1U);
  EXPECT_EQ(selection.load[0].info().name, "b");
  EXPECT_EQ(selection.load_bytes, 2U);
  EXPECT_EQ(selection.skipped, 1U);
  EXPECT_EQ(selection.skipped_bytes, 1U);
  ASSERT_EQ(selection.deferred.size(), 1U);
  EXPECT_EQ(selection.deferred[0].path, path);
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(selection.deferred[0].info.offset_bytes));
  std::string bytes(5, ' ');
  file.read(bytes.data(), 5);
  EXPECT_EQ(bytes, "NGRAM");
}

TEST(ExtraWeights, ComeLastAndObeyNoRules) {
  const TempDir dir;
  write(dir, "model.safetensors", {{"z", "model"}, {"visual.a", "tower"}});
  write(dir, "extra_weights.safetensors", {{"visual.b", "extra"}});
  const auto directory = ModelDirectory::open(dir.path());
  EXPECT_EQ(directory.extra_file(), 1U);
  EXPECT_EQ(directory.total_bytes(), 15U);
  std::vector<std::string> names;
  for (const TensorRef& tensor : select_tensors(directory, {.skip_vision = true}).load) {
    names.push_back(tensor.info().name);
  }
  EXPECT_THAT(names, ElementsAre("z", "visual.b"));
}

TEST(ExtraWeights, TakeThePlaceOfOthersWithTheirNames) {
  const TempDir dir;
  write(dir, "model.safetensors", {{"a", "old"}, {"b", "kept"}});
  write(dir, "extra_weights.safetensors", {{"a", "new"}});
  const auto directory = ModelDirectory::open(dir.path());
  EXPECT_EQ(directory.tensors().size(), 2U);
  EXPECT_EQ(read(directory, "a"), "new");
  EXPECT_EQ(read(directory, "b"), "kept");
}

TEST(ExtraWeights, AreNotWhatASingleFileIsOpenedFor) {
  const TempDir dir;
  const std::string path = write(dir, "model.safetensors", {{"a", "model"}});
  write(dir, "extra_weights.safetensors", {{"b", "extra"}});
  const auto directory = ModelDirectory::open(path);
  EXPECT_EQ(directory.extra_file(), std::nullopt);
  EXPECT_EQ(read(directory, "b"), "(absent)");
}

}  // namespace
}  // namespace metrale::weights
