/// CUDA graphs: a batch captured once and replayed over other data, with hooks and deadlines.
#include "expert_parallel/graphs_gpu.hpp"
#include "expert_parallel/low_latency/replay.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class LowLatencyGraph : public testing::TestWithParam<bool> {
 protected:
  void check_on(uint32_t ranks) {
    run_on_gpus(ranks, [&](World& world) {
      check_replays(world, replayed_case(ranks, GetParam()),
                    [&](Stream stream, const std::function<void()>& body) {
                      return [replay = captured(stream, body), stream, &world] {
                        replay();
                        await_all(accelerator_of(world), stream);
                      };
                    });
    });
  }
};

TEST_P(LowLatencyGraph, ReplaysOfOneRank) {
  check_on(1);
}
TEST_P(LowLatencyGraph, ReplaysOfTwoRanks) {
  check_on(2);
}
TEST_P(LowLatencyGraph, ReplaysOfFourRanks) {
  check_on(4);
}

INSTANTIATE_TEST_SUITE_P(, LowLatencyGraph, testing::Bool(), [](const auto& hooks) {
  return std::string(hooks.param ? "hooks" : "whole");
});

}  // namespace
}  // namespace tokenyard::test
