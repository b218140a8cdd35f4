// SPDX-License-Identifier: Apache-2.0
// What the header says about one tensor, and where the tensors lie.
#include <string>
#include <vector>
#include <weights/file_bytes.h>

#include <gtest/gtest.h>

namespace metrale::weights {
namespace {

std::string tensor(std::string_view name, std::string_view dtype, std::string_view shape, std::uint64_t begin,
                   std::uint64_t end) {
  return "\"" + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":)" +
         std::string(shape) + R"(,"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) +
         "]}";
}

// One tensor 'a' from byte 0 to `end`, in a file that holds its data.
std::string one(std::string_view dtype, std::string_view shape, std::uint64_t end) {
  return file_of("{" + tensor("a", dtype, shape, 0, end) + "}", end);
}

std::string with_description(std::string_view description) {
  return file_of("{\"a\":" + std::string(description) + "}");
}

TEST(SafetensorsTensor, EveryDTypeIsReadWithItsPackedSize) {
  for (std::size_t i = 0; i < detail::kDTypes.size(); ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::uint64_t bytes = 16 * bits(dtype) / 8;
    const auto header = parse_bytes(one(to_string(dtype), "[2,8]", bytes));
    const TensorInfo& info = header.tensors()[0];
    EXPECT_EQ(info.dtype, dtype);
    EXPECT_EQ(info.shape, (std::vector<std::uint64_t>{2, 8}));
    EXPECT_EQ(info.num_elems(), 16U);
    EXPECT_EQ(info.size_bytes, bytes);
  }
}

TEST(SafetensorsTensor, AnUnknownDTypeNamesTheTensorAndTheType) {
  expect_refused(one("F128", "[1]", 16), "tensor 'a': unknown dtype 'F128'");
  expect_refused(one("bf16", "[1]", 2), "tensor 'a': unknown dtype 'bf16'");
}

TEST(SafetensorsTensor, RankZeroIsOneElement) {
  const auto header = parse_bytes(one("F32", "[]", 4));
  EXPECT_EQ(header.find("a")->num_elems(), 1U);
  EXPECT_EQ(header.find("a")->size_bytes, 4U);
}

TEST(SafetensorsTensor, ADimensionMayBeZeroIfThereAreNoBytes) {
  EXPECT_EQ(parse_bytes(one("F32", "[2,0]", 0)).find("a")->size_bytes, 0U);
  EXPECT_EQ(parse_bytes(one("F32", "[0,18446744073709551615]", 0)).find("a")->num_elems(), 0U);
  expect_refused(one("F32", "[2,0]", 4), "shape [2, 0] of F32 takes 0 bytes, data_offsets give 4");
}

TEST(SafetensorsTensor, ShapesThatOverflowAreRefusedAlsoWhereAZeroFollows) {
  expect_refused(one("U8", "[4294967296,4294967296]", 0), "overflows 64 bits");
  expect_refused(one("F32", "[576460752303423488]", 0), "overflows 64 bits");  // 2^59 elements, 2^64 bits
  expect_refused(one("U8", "[18446744073709551615,2,0]", 0), "overflows 64 bits");
}

TEST(SafetensorsTensor, DimensionsMustBeUnsigned64BitIntegers) {
  for (const char* dim :
       {"1.0", "-1", "-0", "1e0", "18446744073709551616", "\"1\"", "null", "true", "[1]", "{}", "01"}) {
    expect_refused(one("U8", "[" + std::string(dim) + "]", 1),
                   "tensor 'a': shape must be an unsigned 64-bit integer");
  }
}

TEST(SafetensorsTensor, OffsetsMustBeUnsigned64BitIntegers) {
  for (const char* end : {"1.0", "-1", "18446744073709551616", "\"1\"", "null"}) {
    expect_refused(
        with_description(R"({"dtype":"U8","shape":[1],"data_offsets":[0,)" + std::string(end) + "]}"),
        "tensor 'a': data_offsets must be an unsigned 64-bit integer");
  }
}

TEST(SafetensorsTensor, OffsetsAreExactlyTwo) {
  for (const char* offsets : {"[]", "[0]", "[0,1,2]"}) {
    expect_refused(
        with_description(R"({"dtype":"U8","shape":[1],"data_offsets":)" + std::string(offsets) + "}"),
        "tensor 'a': data_offsets must be 2 numbers");
  }
}

TEST(SafetensorsTensor, AMemberOfTheWrongTypeIsNamed) {
  expect_refused(with_description("7"), "tensor 'a' must be an object, got 7");
  expect_refused(with_description("null"), "tensor 'a' must be an object, got null");
  expect_refused(with_description(R"(["U8",[1],[0,1]])"), "tensor 'a' must be an object");
  expect_refused(with_description(R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})"),
                 "tensor 'a': dtype must be a string, got 8");
  expect_refused(with_description(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})"),
                 "tensor 'a': shape must be an array, got 1");
  expect_refused(with_description(R"({"dtype":"U8","shape":[1],"data_offsets":{"begin":0}})"),
                 "tensor 'a': data_offsets must be an array");
}

TEST(SafetensorsTensor, AMissingMemberIsNamed) {
  expect_refused(with_description(R"({"shape":[1],"data_offsets":[0,1]})"), "tensor 'a': dtype is missing");
  expect_refused(with_description(R"({"dtype":"U8","data_offsets":[0,1]})"), "tensor 'a': shape is missing");
  expect_refused(with_description(R"({"dtype":"U8","shape":[1]})"), "tensor 'a': data_offsets is missing");
  expect_refused(with_description("{}"), "is missing");
}

TEST(SafetensorsTensor, ARepeatedMemberIsRefused) {
  expect_refused(with_description(R"({"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]})"),
                 "tensor 'a': member 'dtype' stands there twice");
  expect_refused(with_description(R"({"dtype":"U8","shape":[0],"x":1,"data_offsets":[0,0],"x":1})"),
                 "tensor 'a': member 'x' stands there twice");
}

TEST(SafetensorsTensor, UnknownMembersAreIgnored) {
  const auto header = parse_bytes(with_description(
      R"({"x":{"dtype":[1,-2.5e-3,true,false,null,"s",{}]},"dtype":"U8","shape":[0],"data_offsets":[0,0],"y":1e300})"));
  EXPECT_EQ(header.find("a")->dtype, DType::kU8);
}

TEST(SafetensorsTensor, UnknownMembersMustBeJsonNonetheless) {
  for (const char* value :
       {"01", "1.", "tru", "nul", "[1,]", "{\"k\"}", "+1", ".5", "1e", "\"\\q\"", "[}", "-"}) {
    SCOPED_TRACE(value);
    expect_refused(
        with_description(R"({"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":)" + std::string(value) + "}"),
        "");
  }
}

TEST(SafetensorsTensor, NestingIsFollowedTo127Levels) {
  const auto nested = [](std::size_t depth) {
    return with_description(R"({"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":)" +
                            std::string(depth, '[') + std::string(depth, ']') + "}");
  };
  EXPECT_EQ(parse_bytes(nested(125)).tensors().size(), 1U);
  expect_refused(nested(126), "nested more than 127 deep");
  expect_refused(nested(1'000'000), "nested more than 127 deep");
}

TEST(SafetensorsTensor, TensorsComeInTheOrderOfTheirData) {
  const auto header =
      parse_bytes(file_of("{" + tensor("c", "U8", "[4]", 6, 10) + "," + tensor("b", "U8", "[2]", 0, 2) + "," +
                              tensor("a", "U8", "[4]", 2, 6) + "}",
                          10));
  ASSERT_EQ(header.tensors().size(), 3U);
  EXPECT_EQ(header.tensors()[0].name, "b");
  EXPECT_EQ(header.tensors()[1].name, "a");
  EXPECT_EQ(header.tensors()[2].name, "c");
  EXPECT_EQ(header.find("c")->offset_bytes, header.find("b")->offset_bytes + 6);
  EXPECT_EQ(header.data_bytes(), 10U);
}

TEST(SafetensorsTensor, ATensorWithoutDataComesBeforeTheOneAtTheSameByte) {
  const auto header =
      parse_bytes(file_of("{" + tensor("full", "U8", "[2]", 0, 2) + "," + tensor("none", "U8", "[0]", 0, 0) +
                              "," + tensor("last", "U8", "[0]", 2, 2) + "}",
                          2));
  EXPECT_EQ(header.tensors()[0].name, "none");
  EXPECT_EQ(header.tensors()[1].name, "full");
  EXPECT_EQ(header.tensors()[2].name, "last");
}

TEST(SafetensorsTensor, DataMustBeginAtTheFirstByte) {
  expect_refused(file_of("{" + tensor("a", "U8", "[1]", 1, 2) + "}", 2),
                 "tensor 'a': data_offsets [1, 2] leave a hole: the data begin at 0");
}

TEST(SafetensorsTensor, AHoleBetweenTensorsIsRefused) {
  expect_refused(
      file_of("{" + tensor("a", "U8", "[1]", 0, 1) + "," + tensor("b", "U8", "[1]", 2, 3) + "}", 3),
      "tensor 'b': data_offsets [2, 3] leave a hole: 'a' ends at 1");
}

TEST(SafetensorsTensor, OverlappingTensorsAreRefused) {
  expect_refused(
      file_of("{" + tensor("a", "U8", "[2]", 0, 2) + "," + tensor("b", "U8", "[2]", 1, 3) + "}", 3),
      "tensor 'b': data_offsets [1, 3] overlap: 'a' ends at 2");
}

TEST(SafetensorsTensor, TwoTensorsOfTheSameBytesAreRefused) {
  expect_refused(
      file_of("{" + tensor("a", "U8", "[2]", 0, 2) + "," + tensor("b", "U8", "[2]", 0, 2) + "}", 2),
      "overlap");
}

TEST(SafetensorsTensor, OffsetsThatRunBackwardsAreRefused) {
  expect_refused(
      file_of("{" + tensor("a", "U8", "[2]", 0, 2) + "," + tensor("b", "U8", "[1]", 2, 1) + "}", 3),
      "tensor 'b': data_offsets [2, 1] run backwards");
}

TEST(SafetensorsTensor, TheSpanMustBeWhatShapeAndTypeTake) {
  expect_refused(one("F8_E4M3", "[128,128]", 128),
                 "tensor 'a': shape [128, 128] of F8_E4M3 takes 16384 bytes, data_offsets give 128");
  expect_refused(one("F32", "[2]", 9), "takes 8 bytes, data_offsets give 9");
}

TEST(SafetensorsTensor, TypesBelowAByteMustFillBytes) {
  expect_refused(one("F4", "[3]", 1), "tensor 'a': shape [3] of F4 does not fill whole bytes: 12 bits");
  expect_refused(one("F6_E2M3", "[2]", 1), "does not fill whole bytes: 12 bits");
  EXPECT_EQ(parse_bytes(one("F6_E3M2", "[4]", 3)).find("a")->size_bytes, 3U);
}

TEST(SafetensorsTensor, OffsetsNearTheEndOfTheRangeDoNotWrap) {
  const std::uint64_t top = ~std::uint64_t{0};
  expect_refused(file_of("{" + tensor("a", "U8", "[1]", 0, top) + "}", 1), "takes 1 bytes");
  expect_refused(file_of("{" + tensor("a", "U8", "[1]", top, top) + "}", 1), "leave a hole");
  expect_refused(file_of("{" + tensor("a", "U8", "[2305843009213693951]", 0, 2305843009213693951U) + "}", 1),
                 "truncated: 2305843009213693951 bytes of data needed, 1 there");
}

TEST(SafetensorsTensor, ATruncatedFileNamesNeedAndHaveAndTheFirstTensorThatIsCut) {
  const std::string json = "{" + tensor("a", "F32", "[2]", 0, 8) + "," + tensor("b", "F32", "[2]", 8, 16) +
                           "," + tensor("c", "F32", "[2]", 16, 24) + "}";
  for (std::size_t held = 8; held < 16; ++held) {
    expect_refused(file_of(json, held), "truncated: 24 bytes of data needed, " + std::to_string(held) +
                                            " there; tensor 'b' is the first that is cut");
  }
}

TEST(SafetensorsTensor, BytesAfterTheLastTensorAreRefused) {
  expect_refused(file_of("{" + tensor("a", "U8", "[1]", 0, 1) + "}", 4), "3 bytes follow the last tensor");
  expect_refused(file_of("{}", 1), "1 bytes follow the last tensor");
}

TEST(SafetensorsTensor, BytesAfterTheLastTensorAreIgnoredOnRequest) {
  const SafetensorsOptions lenient{.trailing_bytes = TrailingBytes::kIgnore};
  const auto header = parse_bytes(file_of("{" + tensor("a", "U8", "[1]", 0, 1) + "}", 4), lenient);
  EXPECT_EQ(header.data_bytes(), 1U);
  EXPECT_THROW((void)parse_bytes(file_of("{" + tensor("a", "U8", "[2]", 0, 2) + "}", 1), lenient),
               FormatError);
}

TEST(SafetensorsTensor, AnErrorNamesTheByteOfTheTensorsName) {
  const std::string first = "{" + tensor("a", "U8", "[1]", 0, 1) + ",";
  try {
    (void)parse_bytes(file_of(first + tensor("b", "U8", "[1]", 2, 3) + "}", 3));
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_EQ(error.offset(), 8 + first.size());
  }
}

TEST(SafetensorsTensor, DataNeedNotBeAligned) {
  // A header of odd length, and four-byte elements after one byte: files of older writers.
  const std::string json = "{" + tensor("a", "U8", "[1]", 0, 1) + "," + tensor("b", "F32", "[1]", 1, 5) + "}";
  for (std::size_t padding = 0; padding < 8; ++padding) {
    const auto header = parse_bytes(file_of(json + std::string(padding, ' '), 5));
    EXPECT_EQ(header.find("b")->offset_bytes, 8 + json.size() + padding + 1);
  }
}

}  // namespace
}  // namespace metrale::weights
