// Graphs as bytes, whole and damaged.
#include "megakernel/graph_codec.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "base/spoiled_archives.hpp"
#include "fuzz/archives.hpp"
#include "megakernel/task_kinds.hpp"
#include "megakernel/trace/trace_codec.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

constexpr uint32_t kSender = 2;

/// All members that an author declares in a graph.
struct Declared {
  Graph::Place place{.rank = 1, .ranks = 3};
  TensorOptions tensor{.name = "x", .bytes = 64};
  EventOptions event{.name = "a"};
  TaskOptions task{.name = "does"};
  Nothing::Args args{.number = 5};
  bool greedy = false, loops = false, once = false;
};

Graph made(const std::function<void(Declared&)>& change = [](Declared&) {}) {
  Declared declared;
  change(declared);
  Graph graph(kinds(), declared.place);
  graph.tensor({.name = "of one byte", .bytes = 1});
  graph.tensor(declared.tensor);
  graph.event({.name = "first"});
  const Event event = graph.event(declared.event);
  const auto args = std::as_bytes(std::span(&declared.args, 1));
  graph.add(declared.greedy ? Greedy::kName : Nothing::kName, args, declared.task);
  if (declared.loops) graph.loop_on(event);
  if (declared.once) graph.once();
  return graph;
}

Graph full() {
  return made([](Declared& declared) {
    declared.task = {.name = std::string("with a \0 and \"quotes\"", 21),
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
    declared.loops = true;
  });
}

TEST(GraphCodec, AGraphIsTheSameAfterwards) {
  const auto bytes = GraphCodec::encode(full());
  EXPECT_EQ(GraphCodec::encode(GraphCodec::decode(bytes, kinds(), kSender)), bytes);
}

// The checksum tells of damage only: numbers are checked as those of an author are.
TEST(GraphCodec, NumbersOutOfRangeAreRefused) {
  const std::vector<std::byte> whole = GraphCodec::encode(full());
  const std::span<const std::byte> kind(whole), body = kind.subspan(sizeof(ArchiveHeader));
  std::map<std::string, int> refusals;
  for (size_t at = 0; at < body.size(); ++at) {
    std::vector<std::byte> changed(body.begin(), body.end());
    changed[at] ^= std::byte{0x80};
    const std::string said = refusal_of([&] {
      try {
        GraphCodec::decode(fuzz::archive_of(kind, changed), kinds(), kSender);
      } catch (const InvalidGraph&) {
        // The names of the types differ.
      }
    });
    for (const char* what : {"type of task", "reads of task", "events of task", "lag of a wait",
                             "a signal of task", "rank of a graph"})
      if (said.find(what) != std::string::npos) ++refusals[what];
  }
  EXPECT_EQ(refusals.size(), 6u);
}

/// A member that is not encoded would leave the bytes of both graphs equal.
TEST(GraphCodec, EverythingDeclaredInAGraphTravels) {
  const auto plain = GraphCodec::encode(made());
  const std::vector<std::function<void(Declared&)>> changes = {
      [](Declared& declared) { declared.place.rank = 2; },
      [](Declared& declared) { declared.place.ranks = 4; },
      [](Declared& declared) { declared.tensor.name = "y"; },
      [](Declared& declared) { declared.tensor.bytes = 65; },
      [](Declared& declared) { declared.tensor.given = Given::always; },
      [](Declared& declared) { declared.tensor.words = true; },
      [](Declared& declared) { declared.event.name = "b"; },
      [](Declared& declared) { declared.event.count = 0; },
      [](Declared& declared) { declared.event.dynamic_max = 1; },
      [](Declared& declared) { declared.event.carried = true; },
      [](Declared& declared) { declared.task.name = "do"; },
      [](Declared& declared) {
        declared.task.reads = {{1, 1, 2}};
      },
      [](Declared& declared) {
        declared.task.writes = {{1, 1, 2}};
      },
      [](Declared& declared) {
        declared.task.adds = {{1, 1, 2}};
      },
      [](Declared& declared) {
        declared.task.streams = {{1, 1, 2}};
      },
      [](Declared& declared) {
        declared.task.streams = {{0, 1, 1}};
      },
      [](Declared& declared) {
        declared.task.streams = {{1, 0, 2}};
      },
      [](Declared& declared) {
        declared.task.streams = {{1, 1, 3}};
      },
      [](Declared& declared) {
        declared.task.streams = {{1, 1, 2, 0}};
      },
      [](Declared& declared) {
        declared.task.waits = {{{0}, 1}};
      },
      [](Declared& declared) {
        declared.task.waits = {{{1}, 1}};
      },
      [](Declared& declared) {
        declared.task.waits = {{{1}, 0}};
      },
      [](Declared& declared) { declared.task.signals = {{{0}}}; },
      [](Declared& declared) { declared.task.signals = {{{1}}}; },
      [](Declared& declared) {
        declared.task.signals = {{{1}, 0}};
      },
      [](Declared& declared) {
        declared.task.signals = {{{1}, 0, 2}};
      },
      [](Declared& declared) {
        declared.task.signals = {{{1}, 0, 2, true}};
      },
      [](Declared& declared) { declared.task.expects = {{0}}; },
      [](Declared& declared) { declared.task.worker = 0; },
      [](Declared& declared) { declared.task.cost_ns = 1; },
      [](Declared& declared) { declared.task.ahead_bytes = 1; },
      [](Declared& declared) { declared.args.number = 6; },
      [](Declared& declared) { declared.greedy = true; },
      [](Declared& declared) { declared.loops = true; },
      [](Declared& declared) { declared.once = true; },
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
