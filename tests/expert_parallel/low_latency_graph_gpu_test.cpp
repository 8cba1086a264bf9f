/// CUDA graphs: a batch captured once, replayed over other data, hooks and deadlines on.
#include <cuda_runtime_api.h>

#include "device/cuda/runtime.hpp"
#include "expert_parallel/low_latency_replay.hpp"
#include "expert_parallel/ranks.hpp"

namespace tokenyard::test {
namespace {

using cuda::check;

/// Owned by every replay that launches it.
std::shared_ptr<CUgraphExec_st> capture(cudaStream_t stream, const std::function<void()>& body) {
  cudaGraph_t graph = nullptr;
  // What other ranks' threads do meanwhile is none of this capture's business.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of a capture");
  body();
  check(cudaStreamEndCapture(stream, &graph), "end of a capture");
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return {executable, [](cudaGraphExec_t graph) { cudaGraphExecDestroy(graph); }};
}

class LowLatencyGraph : public testing::TestWithParam<bool> {
 protected:
  /// A GPU each: ranks that share one are launched together, by the host, each time anew.
  void check_on(uint32_t ranks) {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || static_cast<uint32_t>(gpus) < ranks)
      GTEST_SKIP() << ranks << " GPUs are needed";
    const auto worlds = World::in_process(
        ranks, "cuda", {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{64} << 20});
    expect_none_failed(run_ranks(worlds, [&](World& world) {
      check(cudaSetDevice(world.accelerator().device_index()), "cudaSetDevice");
      check_replays(world, replayed_case(ranks, GetParam()),
                    [&](Stream stream, const std::function<void()>& body) {
                      const auto native = reinterpret_cast<cudaStream_t>(stream.native);
                      return [graph = capture(native, body), native, &world] {
                        check(cudaGraphLaunch(graph.get(), native), "cudaGraphLaunch");
                        await_all(world.accelerator(), {reinterpret_cast<uintptr_t>(native)});
                      };
                    });
    }));
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
