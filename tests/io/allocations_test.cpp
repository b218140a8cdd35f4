// SPDX-License-Identifier: Apache-2.0
// A queue allocates when it is made and registered with, and not for a request.
#include <array>

#include <gtest/gtest.h>

#include <metrale/io/fault.h>
#include <metrale/io/make_queue.h>

#include "support/failing_new.h"
#include "support/temp_dir.h"

namespace metrale::io {
namespace {

void read_many(IoQueue& queue, FileId id, std::span<std::byte> memory) {
  std::array<Completion, 8> done{};
  for (int round = 0; round < 50; ++round) {
    for (std::size_t i = 0; i < done.size(); ++i) {
      ASSERT_TRUE(queue.prepare(read_request(id, i, memory.subspan(i * 100, 100))).has_value());
    }
    queue.submit();
    ASSERT_EQ(queue.poll(done, done.size()), done.size());
  }
}

TEST(IoQueueAllocations, RequestsAllocateNothing) {
  const TempDir dir;
  const File file = File::open(dir.write("file", std::string(1'000, 'a')), OpenMode::kRead);
  std::vector<std::byte> memory(800);
  for (const IoEngineKind kind : {IoEngineKind::kPosix, IoEngineKind::kAuto}) {
    const auto queue = make_io_queue({.kind = kind, .limits = {.depth = 8}});
    const FileId id = queue->register_file(file);
    allocations = 0;

    read_many(*queue, id, memory);

    EXPECT_EQ(allocations, 0) << queue->name();
  }
}

}  // namespace
}  // namespace metrale::io
