// SPDX-License-Identifier: Apache-2.0
// The input and output of `metrale batch` as files: lines, their order, and results that a run left.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <support/temp_dir.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>

#include "line_reader.h"
#include "result_file.h"
#include "result_order.h"

namespace metrale::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using namespace std::chrono_literals;

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Two ends of a pipe.
struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe(ends) != 0) throw IoError("cannot make", "pipe", errno);
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
  void send(std::string_view text) const {
    ASSERT_EQ(::write(write.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  UniqueFd read;
  UniqueFd write;
};

struct LineReaderTest : testing::Test {
  std::vector<TextLine> lines_of(const std::string& text, std::uint64_t max_line_bytes = 1000) {
    const UniqueFd file = open_for_reading(dir.write("input", text));
    LineReader reader(file.get(), "input", max_line_bytes);
    std::vector<TextLine> lines;
    TextLine line;
    while (reader.next(line, 0ms) == LineReader::Status::kLine) lines.push_back(line);
    EXPECT_EQ(reader.bytes(), text.size());
    return lines;
  }
  TempDir dir;
};

TEST_F(LineReaderTest, LinesHaveTheirNumberAndPlace) {
  const auto lines = lines_of("ab\r\n\nc");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].text, "ab");
  EXPECT_EQ(lines[0].end, 4U);
  EXPECT_EQ(lines[1].text, "");
  EXPECT_EQ(lines[2].text, "c");
  EXPECT_EQ(lines[2].number, 3U);
  EXPECT_EQ(lines[2].offset, 5U);
  EXPECT_TRUE(lines[1].has_end);
  EXPECT_FALSE(lines[2].has_end);
}

TEST_F(LineReaderTest, EmptyInputHasNoLine) {
  EXPECT_THAT(lines_of(""), IsEmpty());
  EXPECT_EQ(lines_of("\n").size(), 1U);
}

TEST_F(LineReaderTest, LineThatIsTooLongIsPassedOver) {
  const std::string longest(1000, 'x');
  for (const std::size_t size : {1001U, 300'000U, 2'000'000U}) {
    const auto lines = lines_of("a\n" + std::string(size, 'x') + "\n" + longest + "\nb");
    ASSERT_EQ(lines.size(), 4U) << size;
    EXPECT_TRUE(lines[1].too_long);
    EXPECT_EQ(lines[1].text, "");
    EXPECT_EQ(lines[2].text, longest);
    EXPECT_EQ(lines[2].offset, size + 3);
    EXPECT_EQ(lines[3].text, "b");
  }
}

TEST_F(LineReaderTest, LinesLongerThanAReadAreWhole) {
  const std::string line(3'000'000, 'y');
  const auto lines = lines_of(line + "\n" + line, 4'000'000);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].text, line);
  EXPECT_EQ(lines[1].text, line);
}

TEST_F(LineReaderTest, PipeWithoutALineIsNotWaitedFor) {
  const Pipe pipe;
  LineReader reader(pipe.read.get(), "pipe", 1000);
  TextLine line;
  EXPECT_EQ(reader.next(line, 0ms), LineReader::Status::kNothingYet);
  pipe.send("half");
  EXPECT_EQ(reader.next(line, 0ms), LineReader::Status::kNothingYet);
  pipe.send(" a line\n");
  ASSERT_EQ(reader.next(line, 0ms), LineReader::Status::kLine);
  EXPECT_EQ(line.text, "half a line");
}

TEST_F(LineReaderTest, ClosedPipeEnds) {
  Pipe pipe;
  pipe.send("last");
  pipe.write.reset();
  LineReader reader(pipe.read.get(), "pipe", 1000);
  TextLine line;
  ASSERT_EQ(reader.next(line, 0ms), LineReader::Status::kLine);
  EXPECT_EQ(line.text, "last");
  EXPECT_EQ(reader.next(line, 0ms), LineReader::Status::kEnd);
  EXPECT_EQ(reader.next(line, 0ms), LineReader::Status::kEnd);
}

TEST(ResultOrder, EachWaitsForThoseBeforeIt) {
  std::vector<std::string> written;
  ResultOrder order(/*keeps_order=*/true, [&](const FinishedLine& line) { written.push_back(line.text); });
  const auto first = order.open();
  const auto second = order.open();
  const auto third = order.open();

  order.close(third, {"three"});
  order.close(second, {"two"});
  EXPECT_THAT(written, IsEmpty());
  EXPECT_EQ(order.held_bytes(), 8U);
  order.close(first, {"one"});

  EXPECT_THAT(written, ElementsAre("one", "two", "three"));
  EXPECT_EQ(order.held_bytes(), 0U);
  EXPECT_EQ(order.unwritten(), 0U);
}

TEST(ResultOrder, ThoseThatWaitAreLetOutInTheirOrder) {
  std::vector<std::string> written;
  ResultOrder order(/*keeps_order=*/true, [&](const FinishedLine& line) { written.push_back(line.text); });
  static_cast<void>(order.open());
  const auto second = order.open();
  static_cast<void>(order.open());
  const auto fourth = order.open();
  order.close(fourth, {"four"});
  order.close(second, {"two"});

  EXPECT_EQ(order.let_out(), 2U);

  EXPECT_THAT(written, ElementsAre("two", "four"));
  EXPECT_EQ(order.held_bytes(), 0U);
  EXPECT_EQ(order.unwritten(), 2U);
}

TEST(ResultOrder, WithoutOrderEachIsWrittenAtOnce) {
  std::vector<std::string> written;
  ResultOrder order(/*keeps_order=*/false, [&](const FinishedLine& line) { written.push_back(line.text); });
  static_cast<void>(order.open());
  order.close(order.open(), {"two"});
  EXPECT_THAT(written, ElementsAre("two"));
  EXPECT_EQ(order.unwritten(), 1U);
}

std::string result_line(const std::string& id, const std::string& error = "null") {
  return R"({"id":"batch_req_1","custom_id":")" + id + R"(","response":null,"error":)" + error + "}\n";
}

const std::string kTimedOut = R"({"code":"timeout","message":""})";

struct ResultFileTest : testing::Test {
  ResultFileTest() : input(open_for_reading(dir.write("input", "{}"))) {}
  // Opens the file, appends `more` and returns what was kept.
  std::vector<IdKey> open(ExistingFile existing, const std::string& more = "") {
    std::vector<IdKey> kept;
    ResultFile file(path(), existing, input.get(),
                    [&](const KnownResult& known) { kept.push_back(known.key); });
    if (!more.empty()) file.append(more);
    file.sync();
    return kept;
  }
  [[nodiscard]] std::string path() const { return dir.file("out"); }

  TempDir dir;
  UniqueFd input;
};

TEST_F(ResultFileTest, NewOrEmptyFileIsWrittenTo) {
  open(ExistingFile::kRefuse, "a\n");
  EXPECT_EQ(read_file(path()), "a\n");
  dir.write("out", "");
  open(ExistingFile::kRefuse, "b\n");
  EXPECT_EQ(read_file(path()), "b\n");
}

TEST_F(ResultFileTest, FileWithContentsIsRefusedWithTheWaysOut) {
  dir.write("out", "old");
  try {
    open(ExistingFile::kRefuse);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("--resume"));
    EXPECT_THAT(error.what(), HasSubstr("--overwrite"));
  }
  EXPECT_EQ(read_file(path()), "old");
}

TEST_F(ResultFileTest, OverwriteBeginsWithTheFirstLine) {
  dir.write("out", "old results\n");
  {
    const ResultFile file(path(), ExistingFile::kOverwrite, input.get(), {});
    EXPECT_EQ(read_file(path()), "old results\n");
  }
  EXPECT_EQ(read_file(path()), "old results\n");
  open(ExistingFile::kOverwrite, "new\n");
  EXPECT_EQ(read_file(path()), "new\n");
  open(ExistingFile::kOverwrite);
  EXPECT_EQ(read_file(path()), "");
}

TEST_F(ResultFileTest, FileThatGotNothingGoesAgain) {
  {
    const ResultFile file(path(), ExistingFile::kRefuse, input.get(), {});
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
  open(ExistingFile::kRefuse);
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(ResultFileTest, ResumeKeepsWholeLinesAndCutsTheTornOne) {
  const std::string whole = result_line("a") + result_line("b", R"({"code":"invalid_request","message":""})");
  dir.write("out", whole + result_line("c").substr(0, 30));
  EXPECT_THAT(open(ExistingFile::kResume, result_line("d")), ElementsAre(id_key("a"), id_key("b")));
  EXPECT_EQ(read_file(path()), whole + result_line("d"));
}

TEST_F(ResultFileTest, EveryPlaceOfTheCutIsResumedFrom) {
  const std::string first = result_line("a");
  const std::string both = first + result_line("b");
  for (std::size_t size = 0; size <= both.size(); ++size) {
    dir.write("out", both.substr(0, size));
    const std::size_t lines = size == both.size() ? 2 : size >= first.size() ? 1 : 0;
    EXPECT_EQ(open(ExistingFile::kResume, "x\n").size(), lines) << size;
    EXPECT_EQ(read_file(path()), both.substr(0, lines == 2 ? both.size() : lines * first.size()) + "x\n");
  }
}

TEST_F(ResultFileTest, ResumeOfNothingBegins) {
  EXPECT_THAT(open(ExistingFile::kResume, "a\n"), IsEmpty());
  EXPECT_EQ(read_file(path()), "a\n");
}

TEST_F(ResultFileTest, ResumeTakesOutWhatTimedOut) {
  dir.write("out", result_line("a") + result_line("b", kTimedOut) + result_line("c") + "{\"id\":");
  std::filesystem::create_symlink(path(), dir.file("link"));
  {
    ResultFile file(dir.file("link"), ExistingFile::kResume, input.get(), [](const KnownResult&) {});
    file.append(result_line("b"));
  }
  EXPECT_EQ(read_file(path()), result_line("a") + result_line("c") + result_line("b"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir.file("link")));
}

TEST_F(ResultFileTest, FileThatIsWrittenAnewKeepsItsMode) {
  for (const auto mode : {0600U, 0640U, 0666U}) {
    dir.write("out", result_line("a", kTimedOut) + result_line("b"));
    std::filesystem::permissions(path(), std::filesystem::perms{mode});
    EXPECT_THAT(open(ExistingFile::kResume), ElementsAre(id_key("b")));
    EXPECT_EQ(read_file(path()), result_line("b"));
    EXPECT_EQ(std::filesystem::status(path()).permissions(), std::filesystem::perms{mode});
  }
}

TEST_F(ResultFileTest, LinkToNowhereStays) {
  std::filesystem::create_symlink(path(), dir.file("link"));
  {
    const ResultFile file(dir.file("link"), ExistingFile::kRefuse, input.get(), {});
    EXPECT_TRUE(std::filesystem::exists(path()));
  }
  EXPECT_TRUE(std::filesystem::is_symlink(dir.file("link")));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(ResultFileTest, FileThatHoldsSomethingElseIsLeftAlone) {
  for (const std::string& text :
       {std::string("notes\nmore notes\n"), std::string("notes"),
        result_line("a") + "notes\n" + result_line("b"), result_line("a", kTimedOut) + "{}\n"}) {
    dir.write("out", text);
    EXPECT_THROW(open(ExistingFile::kResume), FormatError) << text;
    EXPECT_EQ(read_file(path()), text);
  }
}

TEST_F(ResultFileTest, SecondRunOnTheSameFileIsRefused) {
  const ResultFile file(path(), ExistingFile::kResume, input.get(), {});
  EXPECT_THROW(open(ExistingFile::kResume), IoError);
}

TEST_F(ResultFileTest, InputIsNotWrittenOver) {
  EXPECT_THROW(ResultFile(dir.file("input"), ExistingFile::kOverwrite, input.get(), {}), InvalidArgument);
  EXPECT_EQ(read_file(dir.file("input")), "{}");
}

TEST_F(ResultFileTest, DevicesAndFoldersAreWhatTheyAre) {
  ResultFile null("/dev/null", ExistingFile::kRefuse, input.get(), {});
  null.append("x\n");
  null.sync();
  ResultFile full("/dev/full", ExistingFile::kRefuse, input.get(), {});
  EXPECT_THROW(full.append("x\n"), IoError);
  EXPECT_THROW(ResultFile(dir.path(), ExistingFile::kRefuse, input.get(), {}), IoError);
  EXPECT_THROW(ResultFile(dir.file("no/out"), ExistingFile::kRefuse, input.get(), {}), IoError);
}

}  // namespace
}  // namespace metrale::app
