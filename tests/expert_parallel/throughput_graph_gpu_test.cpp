/// CUDA graphs: dispatch, rows by expert and combine, captured once and replayed over other data.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "device/cuda/runtime.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput_replay.hpp"

namespace tokenyard::test {
namespace {

using cuda::check;

std::shared_ptr<CUgraphExec_st> captured(cudaStream_t stream, const std::function<void()>& body) {
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

class ThroughputGraph : public testing::TestWithParam<uint32_t> {};

/// A GPU each: ranks that share one are launched together, by the host, each time anew.
TEST_P(ThroughputGraph, ReplaysOverOtherData) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || static_cast<uint32_t>(gpus) < GetParam())
    GTEST_SKIP() << GetParam() << " GPUs are needed";
  const auto worlds = World::in_process(
      GetParam(), "cuda", {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{64} << 20});
  expect_none_failed(run_ranks(worlds, [&](World& world) {
    check(cudaSetDevice(world.accelerator().device_index()), "cudaSetDevice");
    check_throughput_replays(
        world, replayed_throughput(GetParam()),
        [&](Stream stream, const std::function<void()>& body) -> std::function<void()> {
          const auto native = reinterpret_cast<cudaStream_t>(stream.native);
          return [graph = captured(native, body), native] {
            check(cudaGraphLaunch(graph.get(), native), "cudaGraphLaunch");
          };
        });
  }));
}

INSTANTIATE_TEST_SUITE_P(, ThroughputGraph, testing::Values(1u, 2u, 4u));

}  // namespace
}  // namespace tokenyard::test
