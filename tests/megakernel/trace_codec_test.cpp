// Traces as bytes, whole and damaged, and their exchange between ranks.
#include "megakernel/trace/trace_codec.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/spoiled_archives.hpp"
#include "fabric/worlds.hpp"
#include "megakernel/invented_traces.hpp"
#include "megakernel/trace/trace_gathering.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

constexpr uint32_t kSender = 2;

/// Returns a trace of rank 1 that uses every member.
Trace full() {
  InventedTraces invented({0, 1'000'000});
  invented.tell(0, 1, 1000, 100);
  invented.tell(1, 0, 2000, 100);
  const auto first = invented.ran(1, 5000, 5100), second = invented.ran(1, 5200, 5300);
  invented.signal(first, second, 1);
  invented.again(first, 7, 6000, 6100);
  Trace trace = invented.traces[1];
  trace.events[0].carried = true;
  trace.events[1].signals.push_back({.rank = 0, .task = 3, .dynamic = true});
  trace.tasks[0].name = std::string("with a \0 and \"quotes\"", 21);
  return trace;
}

TEST(TraceCodec, ATraceIsTheSameAfterwards) {
  const Trace before = full(), after = TraceCodec::decode(TraceCodec::encode(before), kSender);
  EXPECT_EQ(after.rank, before.rank);
  EXPECT_EQ(after.workers, before.workers);
  ASSERT_EQ(after.tasks.size(), before.tasks.size());
  for (size_t i = 0; i < before.tasks.size(); ++i) {
    EXPECT_EQ(after.tasks[i].name, before.tasks[i].name);
    EXPECT_EQ(after.tasks[i].type, before.tasks[i].type);
    ASSERT_EQ(after.tasks[i].waits.size(), before.tasks[i].waits.size());
    for (size_t j = 0; j < before.tasks[i].waits.size(); ++j) {
      EXPECT_EQ(after.tasks[i].waits[j].event, before.tasks[i].waits[j].event);
      EXPECT_EQ(after.tasks[i].waits[j].lag, before.tasks[i].waits[j].lag);
    }
  }
  ASSERT_EQ(after.events.size(), before.events.size());
  for (size_t i = 0; i < before.events.size(); ++i) {
    EXPECT_EQ(after.events[i].carried, before.events[i].carried);
    ASSERT_EQ(after.events[i].signals.size(), before.events[i].signals.size());
    for (size_t j = 0; j < before.events[i].signals.size(); ++j) {
      EXPECT_EQ(after.events[i].signals[j].rank, before.events[i].signals[j].rank);
      EXPECT_EQ(after.events[i].signals[j].task, before.events[i].signals[j].task);
      EXPECT_EQ(after.events[i].signals[j].dynamic, before.events[i].signals[j].dynamic);
    }
  }
  ASSERT_EQ(after.spans.size(), before.spans.size());
  EXPECT_EQ(
      std::memcmp(after.spans.data(), before.spans.data(), before.spans.size() * sizeof(TraceSpan)),
      0);
}

TEST(TraceCodec, WhatIsSpoiledIsRefused) {
  expect_spoiled_refused(TraceCodec::encode(full()), [](std::span<const std::byte> bytes) {
    TraceCodec::decode(bytes, kSender);
  });
}

TEST(TraceCodec, WhatIsNoTraceIsNamed) {
  const std::vector<std::byte> foreign(100, std::byte{0x7f});
  EXPECT_THAT(refusal_of([&] { TraceCodec::decode(foreign, kSender); }),
              HasSubstr("a rank's trace from rank 2 is corrupted: its mark: expected"));
}

/// Intact bytes of a trace with indices out of range.
TEST(TraceCodec, TasksWorkersAndEventsMustExist) {
  const auto said_of = [](const std::function<void(Trace&)>& spoil) {
    Trace trace = full();
    spoil(trace);
    return refusal_of([&] { TraceCodec::decode(TraceCodec::encode(trace), kSender); });
  };
  EXPECT_THAT(said_of([](Trace& trace) { trace.spans[0].task = 99; }),
              HasSubstr("a task below: expected 4, got 99"));
  EXPECT_THAT(said_of([](Trace& trace) { trace.spans[0].worker = 1; }),
              HasSubstr("a worker below: expected 1, got 1"));
  EXPECT_THAT(said_of([](Trace& trace) { trace.tasks[3].waits[0].event = 9; }),
              HasSubstr("an event below: expected 2, got 9"));
  // Each worker has a line in the trace.
  EXPECT_THAT(said_of([](Trace& trace) { trace.workers = 4'000'000'000; }),
              HasSubstr("workers, at most: expected 65536, got 4000000000"));
}

TEST(TraceGathering, PiecesMakeWholesAgain) {
  const auto bytes_of = [](uint32_t rank) {
    // No bytes of rank 0, one piece less a byte, one piece, and two pieces and a byte.
    const size_t size = std::array{0, 9, 10, 21}[rank];
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(100 * rank + i);
    return bytes;
  };
  run_threads("host", 4, {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{1} << 20},
              [&](World& world) {
                const auto all = gather_in_pieces(world, bytes_of(world.rank()), 10);
                ASSERT_EQ(all.size(), 4u);
                for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(all[rank], bytes_of(rank));
              });
}

TEST(TraceGathering, ATraceOfAnotherRankIsRefused) {
  run_threads("host", 2, {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{1} << 20},
              [&](World& world) {
                Trace trace = full();
                trace.rank = 1 - world.rank();
                EXPECT_THROW(gather_traces(world, trace), InternalError);
              });
}

}  // namespace
}  // namespace tokenyard::megakernel
