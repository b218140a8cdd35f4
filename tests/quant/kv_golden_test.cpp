// SPDX-License-Identifier: Apache-2.0
// KvStripe against scripts/golden/kv_golden.py, a second implementation written from docs/formats: the bytes
// of whole stripes and the bits of what they read as.
#include "support/kv_golden.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

namespace metrale::quant {
namespace {

const test::KvGolden& golden() {
  static const test::KvGolden file;
  return file;
}

// A stripe that holds every kind of vector, in memory that nobody wrote before.
struct FilledStripe {
  FilledStripe(KvFormat format, KvSide side, std::uint32_t head_dim, const KvHeadParams& params)
      : bytes(kv_head_stripe_bytes(format, golden().block_size(), head_dim), std::byte{0xFF}),
        stripe(format, side, golden().block_size(), head_dim, bytes) {
    const std::vector<std::uint32_t> tokens = golden().tokens();
    for (std::size_t kind = 0; kind < tokens.size(); ++kind) {
      stripe.encode(tokens[kind], params, golden().input(kind, head_dim));
    }
  }

  std::vector<std::byte> bytes;
  KvStripe stripe;
};

std::vector<std::uint32_t> words_of(const std::vector<std::byte>& bytes) {
  std::vector<std::uint32_t> words(bytes.size() / 4);
  std::memcpy(words.data(), bytes.data(), words.size() * 4);
  return words;
}

class KvGoldenFormats : public testing::TestWithParam<KvFormat> {
 protected:
  // Calls check(side, index of the head_dim, head_dim, how) for all of them.
  template <class Check>
  static void for_stripes(const Check& check) {
    const std::vector<std::uint32_t> head_dims = golden().head_dims();
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      for (std::size_t d = 0; d < head_dims.size(); ++d) {
        for (std::size_t how = 0; how < golden().hows(); ++how) check(side, d, head_dims[d], how);
      }
    }
  }
};

TEST_P(KvGoldenFormats, StripesHaveTheBytesOfThePages) {
  for_stripes([&](KvSide side, std::size_t d, std::uint32_t head_dim, std::size_t how) {
    const auto hashes = golden().words(GetParam(), side, "stripes");
    const FilledStripe filled(GetParam(), side, head_dim, golden().params(how, head_dim));
    EXPECT_EQ(hash64(filled.bytes), golden().stripe_hash(hashes, d, how))
        << "head_dim " << head_dim << " how " << how << " side " << static_cast<int>(side);
  });
}

TEST_P(KvGoldenFormats, ValuesHaveTheBitsOfThePages) {
  const std::vector<std::uint32_t> tokens = golden().tokens();
  const std::vector<std::string> kinds = golden().kinds();
  for_stripes([&](KvSide side, std::size_t d, std::uint32_t head_dim, std::size_t how) {
    const auto hashes = golden().words(GetParam(), side, "values");
    const KvHeadParams params = golden().params(how, head_dim);
    const FilledStripe filled(GetParam(), side, head_dim, params);
    std::vector<float> y(head_dim);
    for (std::size_t kind = 0; kind < tokens.size(); ++kind) {
      filled.stripe.decode(tokens[kind], params, y);
      EXPECT_EQ(test::short_hash(y), hashes.at(d, how, kind)[0])
          << kinds[kind] << " head_dim " << head_dim << " how " << how << " side " << static_cast<int>(side);
    }
  });
}

// What the hashes above are of, for one head_dim, where a difference can be looked at.
TEST_P(KvGoldenFormats, AStripeHasTheBytesThatTheFileShows) {
  const std::uint32_t head_dim = golden().shown();
  const KvHeadParams params = golden().params(golden().hows() - 1, head_dim);
  for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
    const FilledStripe filled(GetParam(), side, head_dim, params);
    EXPECT_EQ(words_of(filled.bytes), golden().words(GetParam(), side, "bytes").values);
    std::vector<float> y(head_dim);
    filled.stripe.decode(golden().tokens()[0], params, y);
    EXPECT_EQ(test::value_bits(y), golden().words(GetParam(), side, "gaussian").values);
  }
}

std::vector<KvFormat> all_formats() {
  std::vector<KvFormat> formats;
  for (const KvFormatInfo& info : kKvFormats) formats.push_back(info.format);
  return formats;
}

INSTANTIATE_TEST_SUITE_P(Formats, KvGoldenFormats, testing::ValuesIn(all_formats()),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(KvGoldenRotation, VectorsHaveTheBitsOfThePageThereAndBack) {
  const auto rotated = golden().words("rotated");
  const auto restored = golden().words("restored");
  const std::vector<std::uint32_t> head_dims = golden().head_dims();
  const std::vector<std::string> kinds = golden().kinds();
  for (std::size_t d = 0; d < head_dims.size(); ++d) {
    for (std::size_t how = 0; how < golden().hows(); ++how) {
      for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
        const KvHeadParams params = golden().params(how, head_dims[d]);
        std::vector<float> y(head_dims[d]);
        std::vector<float> back(head_dims[d]);
        rotate(params, golden().input(kind, head_dims[d]), y);
        unrotate(params, y, back);
        EXPECT_EQ(test::short_hash(y), rotated.at(d, how, kind)[0])
            << kinds[kind] << " head_dim " << head_dims[d] << " how " << how;
        EXPECT_EQ(test::short_hash(back), restored.at(d, how, kind)[0])
            << kinds[kind] << " head_dim " << head_dims[d] << " how " << how << " restored";
      }
    }
  }
}

TEST(KvGoldenRotation, AVectorHasTheBitsThatTheFileShows) {
  const auto rotated = golden().words("rotated.shown");
  std::vector<float> y(golden().shown());
  for (std::size_t how = 0; how < golden().hows(); ++how) {
    rotate(golden().params(how, golden().shown()), golden().input(0, golden().shown()), y);
    const auto expected = rotated.at(how);
    EXPECT_EQ(test::value_bits(y), std::vector(expected.begin(), expected.end())) << "how " << how;
  }
}

}  // namespace
}  // namespace metrale::quant
