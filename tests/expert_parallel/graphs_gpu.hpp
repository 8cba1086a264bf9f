/// CUDA graphs in tests: calls captured on one GPU per rank, to be replayed.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "device/accelerator.hpp"
#include "device/cuda/runtime.hpp"
#include "expert_parallel/ranks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

inline cudaStream_t native(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream.native);
}

/// Captures the work that `body` enqueues on the stream; returns a function that launches it.
inline std::function<void()> captured(Stream stream, const std::function<void()>& body) {
  using cuda::check;
  cudaGraph_t graph = nullptr;
  // Work of other ranks' threads must not invalidate this capture.
  check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
        "begin of a capture");
  body();
  check(cudaStreamEndCapture(native(stream), &graph), "end of a capture");
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  const std::shared_ptr<CUgraphExec_st> owner(
      executable, [](cudaGraphExec_t graph) { cudaGraphExecDestroy(graph); });
  return
      [owner, stream] { check(cudaGraphLaunch(owner.get(), native(stream)), "cudaGraphLaunch"); };
}

/// Runs `body` on one GPU per rank, or skips: the host launches ranks that share a GPU together, so
/// their launches cannot be captured.
inline void run_on_gpus(uint32_t ranks, const Body& body) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || static_cast<uint32_t>(gpus) < ranks)
    GTEST_SKIP() << ranks << " GPUs are needed";
  const auto worlds = World::in_process(
      ranks, "cuda", {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{64} << 20});
  expect_none_failed(run_ranks(worlds, [&](World& world) {
    cuda::check(cudaSetDevice(accelerator_of(world).device_index()), "cudaSetDevice");
    body(world);
  }));
}

}  // namespace tokenyard::test
