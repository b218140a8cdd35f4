// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/gpu/kernel_args.h>

namespace metrale::gpu {
namespace {

std::vector<std::byte> bytes_from_one(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

TEST(PackedKernelArgs, AddressTakesOneSlot) {
  const std::array<KernelArg, 1> args{DevicePtr(0x1234)};

  const PackedKernelArgs packed(args);

  ASSERT_EQ(packed.slots().size(), 1U);
  EXPECT_EQ(packed.slots()[0], 0x1234U);
}

TEST(PackedKernelArgs, LastSlotOfBytesIsZeroPadded) {
  const std::vector<std::byte> nine = bytes_from_one(9);
  const std::array<KernelArg, 1> args{std::span<const std::byte>(nine)};

  const PackedKernelArgs packed(args);

  ASSERT_EQ(packed.slots().size(), 2U);
  EXPECT_EQ(packed.slots()[0], 0x0807'0605'0403'0201U);
  EXPECT_EQ(packed.slots()[1], 0x09U);
}

TEST(PackedKernelArgs, EmptyBytesTakeOneZeroSlot) {
  const std::array<KernelArg, 1> args{std::span<const std::byte>{}};

  const PackedKernelArgs packed(args);

  ASSERT_EQ(packed.slots().size(), 1U);
  EXPECT_EQ(packed.slots()[0], 0U);
}

TEST(PackedKernelArgs, DescriptorOf128BytesIsContiguous) {
  const std::vector<std::byte> descriptor = bytes_from_one(128);
  const std::array<KernelArg, 3> args{DevicePtr(1), std::span<const std::byte>(descriptor), DevicePtr(2)};

  const PackedKernelArgs packed(args);

  ASSERT_EQ(packed.slots().size(), 18U);
  EXPECT_EQ(packed.starts()[1], 1U);
  EXPECT_EQ(packed.starts()[2], 17U);
  EXPECT_EQ(std::memcmp(packed.params()[1], descriptor.data(), descriptor.size()), 0);
}

TEST(PackedKernelArgs, ParametersPointAtTheirArguments) {
  const std::array<KernelArg, 2> args{DevicePtr(7), DevicePtr(8)};

  const PackedKernelArgs packed(args);

  ASSERT_EQ(packed.params().size(), 2U);
  EXPECT_EQ(packed.params()[0], &packed.slots()[0]);
  EXPECT_EQ(packed.params()[1], &packed.slots()[1]);
}

}  // namespace
}  // namespace metrale::gpu
