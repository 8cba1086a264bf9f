/// Graphs whose ranks are on several hosts, over the simulated network.
#include <gmock/gmock.h>

#include "expert_parallel/ranks.hpp"
#include "fabric/arena.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/world_access.hpp"
#include "megakernel/tasks/builtin.hpp"
#include "megakernel/tasks/exchange.hpp"
#include "simt/host_accelerator.hpp"
#include "tokenyard/megakernel/error.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {
namespace {

using test::expect_none_failed;
using test::run_ranks;
using testing::HasSubstr;
using HostOf = std::vector<uint32_t>;

std::vector<std::unique_ptr<World>> worlds(
    const HostOf& host_of, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (size_t rank = 0; rank < host_of.size(); ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  return join_all(accelerators, std::make_shared<InProcessFabric>(host_of),
                  {.timeout = timeout, .arena_bytes = size_t{4} << 20},
                  {.run = cards_on_threads()});
}

/// A sum over all ranks: each copies its numbers to every rank, which adds them up.
class AllReduce {
 public:
  static constexpr uint32_t kCount = 600;
  static constexpr uint64_t kBytes = kCount * sizeof(float);

  explicit AllReduce(World& world)
      : rank_(world.rank()),
        ranks_(world.size()),
        memory_(world),
        parts_(memory_.shared(ranks_ * kBytes)),
        numbers_(memory_.visible(kBytes)),
        sums_(memory_.visible(kBytes)),
        graph_(builtin_tasks(), {.rank = rank_, .ranks = ranks_}) {
    numbers_t_ = graph_.tensor(
        {.name = "numbers", .bytes = kBytes, .given = Given::always, .places = {numbers_}});
    parts_t_ = graph_.tensor(
        {.name = "parts", .bytes = ranks_ * kBytes, .places = {parts_.begin(), parts_.end()}});
    sums_t_ = graph_.tensor({.name = "sums", .bytes = kBytes, .places = {sums_}});
    arrived_ = graph_.event({.name = "all parts"});
    taken_ = graph_.event({.name = "parts taken"});
    ended_ = graph_.event({.name = "end"});
    relayed_ = graph_.event({.name = "all parts, as told"});
    for (uint32_t to = 0; to < ranks_; ++to)
      copied_.push_back(graph_.event({.name = "copied to " + std::to_string(to)}));
  }

  /// `signals`: whether copies signal. `relays`: whether sums await, in place of the copies' own
  /// signals, those of a task that follows each copy.
  Graph& complete(bool signals = true, bool relays = false) {
    for (uint32_t to = 0; to < ranks_; ++to) {
      TaskOptions copy{.name = "copy to " + std::to_string(to),
                       .reads = {numbers_t_.all()},
                       .writes = {parts_t_.part(rank_ * kBytes, (rank_ + 1) * kBytes).of(to)}};
      if (signals) copy.signals = {{.event = arrived_, .rank = to}};
      copy.waits = {{taken_, 1}};
      if (relays) relay(copy, to);
      graph_.add<CopyToPeer>(
          {.from = numbers_.as<uint32_t>(),
           .to = Peer<uint32_t>(parts_[to].as<uint32_t>() + size_t{rank_} * kCount),
           .words = kCount},
          copy);
    }
    TaskOptions sum{.name = "sum",
                    .reads = {parts_t_.all()},
                    .writes = {sums_t_.all()},
                    .waits = {{relays ? relayed_ : arrived_}},
                    .signals = {{ended_}}};
    for (uint32_t from = 0; from < ranks_; ++from)
      sum.signals.push_back({.event = taken_, .rank = from});
    graph_.add<Reduce>({.parts = parts_[rank_].as<float>(),
                        .residual = nullptr,
                        .y = sums_.as<float>(),
                        .part_count = ranks_,
                        .stride = kCount,
                        .count = kCount},
                       sum);
    return graph_;
  }
  void set(float number) {
    for (uint32_t i = 0; i < kCount; ++i) numbers_.as<float>()[i] = number * static_cast<float>(i);
  }
  float sum_at(uint32_t i) const { return sums_.as<float>()[i]; }
  Graph& graph() { return graph_; }
  Event ended() const { return ended_; }
  Tensor parts() const { return parts_t_; }
  const std::vector<TensorView>& pieces() const { return parts_; }

 private:
  void relay(TaskOptions& copy, uint32_t to) {
    copy.signals.push_back({.event = copied_[to]});
    graph_.add<Reduce>({.parts = nullptr,
                        .residual = nullptr,
                        .y = nullptr,
                        .part_count = 0,
                        .stride = 0,
                        .count = 0},
                       {.name = "relay to " + std::to_string(to),
                        .waits = {{copied_[to]}},
                        .signals = {{.event = relayed_, .rank = to}}});
  }

  const uint32_t rank_, ranks_;
  TensorMemory memory_;
  std::vector<TensorView> parts_;
  TensorView numbers_, sums_;
  Graph graph_;
  Tensor numbers_t_, parts_t_, sums_t_;
  Event arrived_, taken_, ended_, relayed_;
  std::vector<Event> copied_;
};

TEST(MegakernelBetweenHosts, AddsUpNumbersOfAllRanks) {
  for (const HostOf& host_of : {HostOf{0, 1}, {0, 0, 1}, {0, 1, 0, 1}, {0, 1, 2}}) {
    expect_none_failed(run_ranks(worlds(host_of), [&](World& world) {
      AllReduce all(world);
      Megakernel kernel(world, all.complete(), {.workers = 2});
      for (uint32_t run = 1; run <= 5; ++run) {
        all.set(static_cast<float>(run * (world.rank() + 1)));
        kernel.run(run);
        const uint32_t of_ranks = world.size() * (world.size() + 1) / 2;
        for (const uint32_t i : {0u, 1u, AllReduce::kCount - 1})
          EXPECT_EQ(all.sum_at(i), static_cast<float>(run * of_ranks * i));
      }
      EXPECT_EQ(kernel.finished_iterations(), 15u);
      world.barrier("all have run");
    }));
  }
}

/// A host feeds iteration after iteration, as a server does.
TEST(MegakernelBetweenHosts, TakesWorkThatItsHostFeeds) {
  expect_none_failed(run_ranks(worlds({0, 1}), [&](World& world) {
    AllReduce all(world);
    all.complete();
    all.graph().loop_on(all.ended());
    Megakernel kernel(world, all.graph(), {.workers = 1});
    kernel.start();
    for (uint32_t step = 1; step <= 4; ++step) {
      all.set(static_cast<float>(step));
      kernel.feed();
      kernel.await(step);
      EXPECT_EQ(all.sum_at(3), 6.0f * static_cast<float>(step));
    }
    EXPECT_EQ(kernel.stop(), 4u);
    world.barrier("all have run");
  }));
}

/// Expects that the graph is refused on every rank alike.
template <class Change>
void expect_refused(GraphFault fault, const std::string& text, Change change) {
  const auto outcomes = run_ranks(worlds({0, 1}), [&](World& world) {
    AllReduce all(world);
    change(all, world);
    Megakernel(world, all.graph(), {.workers = 1});
  });
  for (const auto& outcome : outcomes) {
    const auto error = test::error_of<InvalidGraph>(outcome);
    EXPECT_EQ(error.fault, fault);
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(MegakernelBetweenHosts, RefusesWhatNetworksCannotDo) {
  expect_refused(GraphFault::between_hosts, "signals no event of that rank",
                 [](AllReduce& all, World&) { all.complete(false); });
  // Another task's signal may arrive before the put.
  expect_refused(GraphFault::read_after_write, "has landed",
                 [](AllReduce& all, World&) { all.complete(true, true); });
  for (const bool adds : {false, true})
    expect_refused(GraphFault::between_hosts, adds ? "adds to" : "reads",
                   [&](AllReduce& all, World& world) {
                     all.complete();
                     const Region far = all.parts().part(0, 4).of(1 - world.rank());
                     TaskOptions options{.name = "far"};
                     (adds ? options.adds : options.reads) = {far};
                     all.graph().add<Reduce>({.parts = nullptr,
                                              .residual = nullptr,
                                              .y = nullptr,
                                              .part_count = 0,
                                              .stride = 0,
                                              .count = 0},
                                             options);
                   });
}

TEST(MegakernelBetweenHosts, RefusesATensorWithoutMirrors) {
  const auto outcomes = run_ranks(worlds({0, 1}), [&](World& world) {
    TensorMemory memory(world);
    const TensorView local = memory.local(64);
    Graph graph(builtin_tasks(), {.rank = world.rank(), .ranks = 2});
    const Tensor tensor = graph.tensor({.name = "loose", .bytes = 64, .given = Given::always});
    const Event here = graph.event({.name = "here"});
    const uint32_t far = 1 - world.rank();
    graph.once();
    graph.add<CopyToPeer>(
        {.from = local.as<uint32_t>(), .to = Peer<uint32_t>(local.as<uint32_t>()), .words = 1},
        {.name = "copy",
         .writes = {tensor.all().of(far)},
         .signals = {{.event = here, .rank = far}}});
    Megakernel(world, graph, {.workers = 1});
  });
  for (const auto& outcome : outcomes)
    EXPECT_THAT(test::error_of<InvalidGraph>(outcome).what(), HasSubstr("no places on all ranks"));
}

/// A rank that never runs is named by the ready word that it owes, within the deadline.
TEST(MegakernelBetweenHosts, NamesARankThatDoesNotBegin) {
  const auto outcomes =
      run_ranks(worlds({0, 1}, std::chrono::milliseconds(500)), [&](World& world) {
        AllReduce all(world);
        Megakernel kernel(world, all.complete(), {.workers = 1});
        if (world.rank() == 0) kernel.run(1);
      });
  EXPECT_FALSE(outcomes[1]) << test::message_of(outcomes[1]);
  try {
    std::rethrow_exception(outcomes[0]);
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, 1u);
  } catch (const PeerLost& error) {  // It has left meanwhile.
    EXPECT_EQ(error.facts.rank, 1u);
  }
}

/// Queues, regions and memory are given back: many megakernels one after the other.
TEST(MegakernelBetweenHosts, GivesEverythingBack) {
  expect_none_failed(run_ranks(worlds({0, 1}), [&](World& world) {
    size_t used = 0;
    for (uint32_t turn = 0; turn < 40; ++turn) {
      AllReduce all(world);
      all.set(1);
      Megakernel kernel(world, all.complete(), {.workers = 1});
      kernel.run(2);
      EXPECT_EQ(all.sum_at(2), 4.0f);
      world.barrier("all have run");
      if (turn == 1) used = arena_of(world).used();
      if (turn > 1) {
        EXPECT_EQ(arena_of(world).used(), used);
      }
    }
  }));
}

}  // namespace
}  // namespace tokenyard::megakernel
