/// CUDA graphs: dispatch, rows by expert and combine, captured once and replayed over other data.
#include "expert_parallel/graphs_gpu.hpp"
#include "expert_parallel/throughput/replay.hpp"

namespace tokenyard::test {
namespace {

class ThroughputGraph : public testing::TestWithParam<uint32_t> {};

TEST_P(ThroughputGraph, ReplaysOverOtherData) {
  run_on_gpus(GetParam(), [](World& world) {
    check_throughput_replays(world, replayed_throughput(GetParam()), captured);
  });
}

INSTANTIATE_TEST_SUITE_P(, ThroughputGraph, testing::Values(1u, 2u, 4u));

}  // namespace
}  // namespace tokenyard::test
