// Graphs as bytes, whole and damaged.
#include "megakernel/graph_codec.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/spoiled_archives.hpp"
#include "megakernel/task_kinds.hpp"
#include "megakernel/trace/trace_codec.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

constexpr uint32_t kSender = 2;

/// All members that an author declares in a graph.
struct Told {
  Graph::Place place{.rank = 1, .ranks = 3};
  TensorOptions tensor{.name = "x", .bytes = 64};
  EventOptions event{.name = "a"};
  TaskOptions task{.name = "does"};
  Nothing::Args args{.number = 5};
  bool greedy = false, loops = false, once = false;
};

Graph made(const std::function<void(Told&)>& change = [](Told&) {}) {
  Told told;
  change(told);
  Graph graph(kinds(), told.place);
  graph.tensor({.name = "of one byte", .bytes = 1});
  graph.tensor(told.tensor);
  graph.event({.name = "first"});
  const Event event = graph.event(told.event);
  const auto args = std::as_bytes(std::span(&told.args, 1));
  graph.add(told.greedy ? Greedy::kName : Nothing::kName, args, told.task);
  if (told.loops) graph.loop_on(event);
  if (told.once) graph.once();
  return graph;
}

Graph full() {
  return made([](Told& told) {
    told.task = {.name = std::string("with a \0 and \"quotes\"", 21),
                 .reads = {{1, 1, 2}, {0, 0, 1, 2}},
                 .writes = {{1, 3, 4}},
                 .adds = {{1, 5, 6}},
                 .streams = {{1, 7, 8}},
                 .waits = {{{1}, 1}, {{0}}},
                 .signals = {{{1}, 2, 7, true}},
                 .expects = {{1}},
                 .worker = 3,
                 .cost_ns = 17,
                 .ahead_bytes = 128};
    told.loops = true;
  });
}

TEST(GraphCodec, AGraphIsTheSameAfterwards) {
  const auto bytes = GraphCodec::encode(full());
  EXPECT_EQ(GraphCodec::encode(GraphCodec::decode(bytes, kinds(), kSender)), bytes);
}

/// A member that is not encoded would leave the bytes of both graphs equal.
TEST(GraphCodec, AllThatIsToldOfAGraphTravels) {
  const auto plain = GraphCodec::encode(made());
  const std::vector<std::function<void(Told&)>> changes = {
      [](Told& told) { told.place.rank = 2; },
      [](Told& told) { told.place.ranks = 4; },
      [](Told& told) { told.tensor.name = "y"; },
      [](Told& told) { told.tensor.bytes = 65; },
      [](Told& told) { told.tensor.given = Given::always; },
      [](Told& told) { told.tensor.words = true; },
      [](Told& told) { told.event.name = "b"; },
      [](Told& told) { told.event.count = 0; },
      [](Told& told) { told.event.dynamic_max = 1; },
      [](Told& told) { told.event.carried = true; },
      [](Told& told) { told.task.name = "do"; },
      [](Told& told) {
        told.task.reads = {{1, 1, 2}};
      },
      [](Told& told) {
        told.task.writes = {{1, 1, 2}};
      },
      [](Told& told) {
        told.task.adds = {{1, 1, 2}};
      },
      [](Told& told) {
        told.task.streams = {{1, 1, 2}};
      },
      [](Told& told) {
        told.task.streams = {{0, 1, 1}};
      },
      [](Told& told) {
        told.task.streams = {{1, 0, 2}};
      },
      [](Told& told) {
        told.task.streams = {{1, 1, 3}};
      },
      [](Told& told) {
        told.task.streams = {{1, 1, 2, 0}};
      },
      [](Told& told) {
        told.task.waits = {{{0}, 1}};
      },
      [](Told& told) {
        told.task.waits = {{{1}, 1}};
      },
      [](Told& told) {
        told.task.waits = {{{1}, 0}};
      },
      [](Told& told) { told.task.signals = {{{0}}}; },
      [](Told& told) { told.task.signals = {{{1}}}; },
      [](Told& told) {
        told.task.signals = {{{1}, 0}};
      },
      [](Told& told) {
        told.task.signals = {{{1}, 0, 2}};
      },
      [](Told& told) {
        told.task.signals = {{{1}, 0, 2, true}};
      },
      [](Told& told) { told.task.expects = {{0}}; },
      [](Told& told) { told.task.worker = 0; },
      [](Told& told) { told.task.cost_ns = 1; },
      [](Told& told) { told.task.ahead_bytes = 1; },
      [](Told& told) { told.args.number = 6; },
      [](Told& told) { told.greedy = true; },
      [](Told& told) { told.loops = true; },
      [](Told& told) { told.once = true; },
  };
  std::vector<std::vector<std::byte>> seen = {plain};
  for (const auto& change : changes) {
    const auto changed = GraphCodec::encode(made(change));
    EXPECT_THAT(seen, testing::Not(testing::Contains(changed))) << "change " << seen.size();
    EXPECT_EQ(GraphCodec::encode(GraphCodec::decode(changed, kinds(), kSender)), changed);
    seen.push_back(changed);
  }
}

TEST(GraphCodec, WhatIsSpoiledIsRefused) {
  expect_spoiled_refused(GraphCodec::encode(full()), [](std::span<const std::byte> bytes) {
    GraphCodec::decode(bytes, kinds(), kSender);
  });
}

TEST(GraphCodec, WhatIsNoGraphIsNamed) {
  for (const auto& foreign :
       {std::vector<std::byte>(100, std::byte{0x7f}), TraceCodec::encode(Trace{})}) {
    EXPECT_THAT(refusal_of([&] { GraphCodec::decode(foreign, kinds(), kSender); }),
                HasSubstr("a rank's graph from rank 2 is corrupted: its mark: expected"));
  }
}

TEST(GraphCodec, WhoSentADamagedGraphIsNamed) {
  std::vector<std::byte> damaged = GraphCodec::encode(full());
  damaged.back() ^= std::byte{1};
  EXPECT_THAT(refusal_of([&] { GraphCodec::decode(damaged, kinds(), 7); }),
              HasSubstr("a rank's graph from rank 7 is corrupted: its checksum: expected"));
}

TEST(GraphCodec, TaskTypesMustBeTheSame) {
  const TaskSet fewer{.kernel = nullptr, .types = kinds().types.first(1)};
  try {
    GraphCodec::decode(GraphCodec::encode(made()), fewer, kSender);
    FAIL() << "it was taken";
  } catch (const InvalidGraph& error) {
    EXPECT_EQ(error.fault, GraphFault::tables_differ);
    EXPECT_THAT(error.witness, testing::ElementsAre("this rank's task types: nothing 4; ",
                                                    "those of rank 2: nothing 4; greedy 4; "));
  }
}

}  // namespace
}  // namespace tokenyard::megakernel
