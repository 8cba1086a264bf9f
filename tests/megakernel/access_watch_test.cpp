// Accesses outside declared regions, detected as they happen, on the host and in the simulator.
#include <gmock/gmock.h>

#include "megakernel/devices.hpp"
#include "megakernel/kernels/worker_kernel.hpp"
#include "simulation/suite.hpp"
#include "tokenyard/megakernel/megakernel.hpp"
#include "world/simulated.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

/// Touches the words of `at` that its arguments select, whatever its regions declare.
struct Stray {
  static constexpr const char* kName = "stray";
  enum class Does : uint32_t { reads, writes, adds };
  struct Args {
    uint32_t* at;
    uint32_t words;
    Does does;
  };
  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    for (uint32_t i = context.thread(); i < args.words; i += context.threads()) {
      if (args.does == Does::reads) load<Order::relaxed, Scope::gpu>(args.at + i);
      if (args.does == Does::writes) store<Order::relaxed, Scope::gpu>(args.at + i, 1);
      if (args.does == Does::adds) add<Order::relaxed, Scope::gpu>(args.at + i, 1);
    }
  }
};

using StrayTasks = TaskList<Stray>;
TOKENYARD_DEFINE_HOST_MEGAKERNEL(stray_kernel, StrayTasks)

/// A kernel whose words report their accesses; Stray makes no other accesses.
TaskSet stray_tasks() {
  TaskSet set = task_set<StrayTasks>(stray_kernel.entry);
  set.watched = &stray_kernel.entry;
  return set;
}

/// Runs a task on a tensor of four words, of which it declares some and touches some. Returns the
/// finding.
std::string found(World& world, Stray::Does does, uint32_t words, uint32_t declared,
                  bool checked = true) {
  TensorMemory memory(world);
  auto* const at = memory.local(16).as<uint32_t>();
  Graph graph(stray_tasks(), {});
  const Tensor x = graph.tensor(
      {.name = "x", .bytes = 16, .given = Given::always, .places = {ConstTensorView(at, {4})}});
  TaskOptions options{.name = "strays"};
  auto& regions = does == Stray::Does::reads    ? options.reads
                  : does == Stray::Does::writes ? options.writes
                                                : options.adds;
  regions.push_back(x.part(0, declared * sizeof(uint32_t)));
  graph.add<Stray>({at, words, does}, std::move(options));
  Megakernel kernel(world, graph, {.workers = 1, .check_accesses = checked});
  try {
    kernel.run(2);
  } catch (const InvalidGraph& error) {
    EXPECT_EQ(error.fault, GraphFault::undeclared_access);
    return error.witness.at(0) + " " + error.witness.at(1);
  }
  return "nothing";
}

constexpr Stray::Does kAll[] = {Stray::Does::reads, Stray::Does::writes, Stray::Does::adds};

TEST(AccessWatch, OnAHostThatIsAsked) {
  const auto world = std::move(World::in_process(1, "host", OnDevices::quick()).front());
  for (const Stray::Does does : kAll) {
    EXPECT_EQ(found(*world, does, 4, 4), "nothing");
    EXPECT_EQ(found(*world, does, 0, 0), "nothing");
    EXPECT_THAT(found(*world, does, 3, 2), HasSubstr("bytes [8, 12) of tensor 'x' of rank 0"));
    EXPECT_THAT(found(*world, does, 1, 0), HasSubstr("task 'strays' of rank 0"));
    EXPECT_EQ(found(*world, does, 3, 2, false), "nothing");
  }
}

TEST(AccessWatch, OnAHostWhoseKernelReportsNothing) {
  const auto world = std::move(World::in_process(1, "host", OnDevices::quick()).front());
  const Graph graph(task_set<StrayTasks>(stray_kernel.entry), {});
  EXPECT_THROW(Megakernel(*world, graph, {.check_accesses = true}), Unsupported);
}

TEST(AccessWatch, InTheSimulatorAlways) {
  for (const Stray::Does does : kAll)
    for (const uint32_t declared : {4u, 2u}) {
      simulation::Trace trace;
      simulation::SeedRun run(declared, trace, nullptr);
      const simulated::Result result =
          simulated::run(run, {.ranks = 1, .arena_bytes = size_t{1} << 16},
                         [&](World& world) { found(world, does, 4, declared, false); });
      if (declared == 4)
        result.require_clean();
      else
        // The seed decides the order of a warp's threads.
        EXPECT_THAT(result.failure, AnyOf(HasSubstr("bytes [8, 12) of tensor 'x' of rank 0"),
                                          HasSubstr("bytes [12, 16) of tensor 'x' of rank 0")));
    }
}

}  // namespace
}  // namespace tokenyard::megakernel
