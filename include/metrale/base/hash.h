// SPDX-License-Identifier: Apache-2.0
// XXH3-64 of bytes: checksums of records and fingerprints. Stable across machines and versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace metrale {

[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);

// The same of bytes that come in pieces: how they are cut does not matter.
class Hasher64 {
 public:
  Hasher64();
  ~Hasher64();
  Hasher64(Hasher64&&) noexcept;
  Hasher64& operator=(Hasher64&&) noexcept;
  Hasher64(const Hasher64&) = delete;
  Hasher64& operator=(const Hasher64&) = delete;

  void update(std::span<const std::byte> bytes);
  // Of what came so far; more may follow.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metrale
