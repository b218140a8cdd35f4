// SPDX-License-Identifier: Apache-2.0
// The engines that need no device; cuFile runs over a library of the tests.
#include <metrale/io/make_queue.h>

#include "conformance/io_queue_conformance.h"
#include "support/fake_cufile/fake_library.h"

namespace metrale::io {
namespace {

std::unique_ptr<IoEngine> make(IoOptions options, const EngineLimits& limits) {
  options.limits = limits;
  options.threads = 2;
  return make_io_engine(options);
}

const auto kQueues = testing::Values(
    QueueCase{"Posix", [](const EngineLimits& l) { return make({.kind = IoEngineKind::kPosix}, l); }},
    QueueCase{"Uring", [](const EngineLimits& l) { return make({.kind = IoEngineKind::kUring}, l); }},
    QueueCase{"UringPlain",
              [](const EngineLimits& l) {
                return make({.kind = IoEngineKind::kUring, .use_registered = false}, l);
              }},
    QueueCase{
        "UringPolled",
        [](const EngineLimits& l) { return make({.kind = IoEngineKind::kUring, .sq_polling = true}, l); },
        30},
    QueueCase{"CufileOverFake", [](const EngineLimits& l) {
                return make({.kind = IoEngineKind::kCufile,
                             .cufile_libraries = {test::fake_cufile_path()},
                             .cuda_library = "libc.so.6"},
                            l);
              }});

std::string name_of(const testing::TestParamInfo<QueueCase>& queue) {
  return queue.param.name;
}

INSTANTIATE_TEST_SUITE_P(Queues, IoQueueConformance, kQueues, name_of);
INSTANTIATE_TEST_SUITE_P(Queues, IoQueueFaults, kQueues, name_of);

}  // namespace
}  // namespace metrale::io
