// SPDX-License-Identifier: Apache-2.0
// A program of its own: it counts every allocation it makes.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "sampling/sampling_support.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace metrale::sampling {
namespace {

SamplingParams with_everything() {
  SamplingParams params;
  params.top_k = 400;
  params.top_p = 0.95f;
  params.min_p = 0.001f;
  params.top_n_sigma = 3.0f;
  params.repetition_penalty = 1.1f;
  params.frequency_penalty = 0.1f;
  params.presence_penalty = 0.1f;
  params.dry_multiplier = 0.8f;
  params.lz_penalty = 0.1f;
  params.logit_bias = {{1, 0.5f}};
  params.logprobs = 10;
  params.temperature = 0.8f;
  params.temperature_last = true;
  return params;
}

TEST(SamplerAllocations, ThereAreNoneAfterTheFirstCall) {
  const Logits logits = random_logits(1000, 1);
  const Tokens history{1, 2, 3, 1, 2, 3, 1, 2};
  const Tokens mask(32, 0xFFFFFFFF);
  Sampler original = sampler_for(with_everything(), logits);
  Sampler fork = original;
  for (Sampler* sampler : {&original, &fork}) {
    static_cast<void>(sampler->sample(logits, {history, history}, 0, mask));

    const std::uint64_t before = allocations;
    for (std::uint64_t position = 1; position < 100; ++position) {
      static_cast<void>(sampler->sample(logits, {history, history}, position, mask));
    }

    EXPECT_EQ(allocations, before);
  }
}

TEST(SamplerAllocations, WithoutDryTheFirstCallMakesNoneEither) {
  SamplingParams params = with_everything();
  params.dry_multiplier = 0.0f;
  const Logits logits = random_logits(1000, 1);
  const Tokens history{1, 2, 3, 1, 2, 3, 1, 2};
  Sampler sampler = sampler_for(params, logits);

  const std::uint64_t before = allocations;
  static_cast<void>(sampler.sample(logits, {history, history}, 0));

  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace metrale::sampling
