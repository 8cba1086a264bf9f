/// Measures device time in trains of calls behind a pause, so that no call waits for its launch.
#pragma once

#include <cstring>
#include <optional>

#include "bench/harness/graph.hpp"
#include "bench/harness/pause.hpp"
#include "bench/harness/report.hpp"
#include "bench/low_latency/batches.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::bench {

/// Calls between two events, and the pause during which all of them are enqueued.
inline constexpr uint32_t kTrain = 20, kPauseNs = 1'000'000;

/// The kernels of a batch that record their span.
enum class Span : uint32_t { dispatch, dispatch_receive, combine, combine_receive };
inline constexpr uint32_t kSpans = 4;

/// Times of each train, in us.
struct TrainTimes {
  std::vector<double> call;           ///< between events, per call (or pair, as the body is)
  std::vector<double> spans[kSpans];  ///< from the first block's begin to the last one's end,
                                      ///< averaged over the calls; empty: there is no such kernel
};

/// Memory in which the kernels of a train record their spans.
class SpanMemory {
 public:
  explicit SpanMemory(Tensors& tensors)
      : tensors_(tensors), device_(static_cast<uint64_t*>(tensors.reserve(sizeof(Told)))) {}

  void reset(Accelerator& accelerator, Stream stream) {
    for (auto& call : told_)
      for (auto& span : call) span[0] = UINT64_MAX, span[1] = 0;
    accelerator.copy(device_, told_, sizeof(Told), stream);
  }
  /// Returns the spans of both halves of a dispatch or combine.
  TensorView of(uint32_t call, Span first) const {
    return {device_ + (call * kSpans + static_cast<uint32_t>(first)) * 2, {2, 2}};
  }
  void add_means(TrainTimes& to, Stream stream) {
    const auto told = tensors_.download<uint64_t>(device_, sizeof(Told) / 8, stream);
    std::memcpy(told_, told.data(), sizeof(Told));
    for (uint32_t span = 0; span < kSpans; ++span) {
      double ns = 0;
      for (const auto& call : told_) ns += static_cast<double>(call[span][1] - call[span][0]);
      if (told_[0][span][1] != 0) to.spans[span].push_back(ns * 1e-3 / kTrain);
    }
  }

 private:
  using Told = uint64_t[kTrain][kSpans][2];
  Tensors& tensors_;
  uint64_t* device_;
  Told told_;
};

/// The way in which a train's calls are launched.
enum class Launched : uint8_t { one_by_one, as_a_graph };

/// Measures trains. `body(call, spans)` enqueues a call. Ranks start each train together.
template <class Body>
TrainTimes time_trains(World& world, Tensors& tensors, Stream stream, uint32_t trains, Launched how,
                       Body body) {
  Accelerator& accelerator = accelerator_of(world);
  const uint32_t pause_ns = accelerator.kind() == AcceleratorKind::gpu ? kPauseNs : 0;
  constexpr uint32_t kWarmUp = 2;
  SpanMemory spans(tensors);
  const auto enqueue = [&] {
    for (uint32_t call = 0; call < kTrain; ++call) body(call, spans);
  };
  std::optional<Graph> graph;
  if (how == Launched::as_a_graph) graph.emplace(accelerator, stream, enqueue);
  TrainTimes times;
  for (uint32_t train = 0; train < trains + kWarmUp; ++train) {
    spans.reset(accelerator, stream);
    world.barrier("bench: start of a train");
    launch(accelerator, pause_kernel, {.blocks = 1, .warps = 1, .cooperative = false}, stream,
           PauseParams{pause_ns});
    const Event begin = accelerator.record(stream);
    if (graph)
      graph->launch();
    else
      enqueue();
    const Event end = accelerator.record(stream);
    if (!accelerator.wait_until(accelerator.now() + std::chrono::seconds(30),
                                [&] { return accelerator.done(end); }))
      throw InternalError("a measured train did not end within 30 s");
    if (train >= kWarmUp) {
      times.call.push_back(accelerator.elapsed_ms(begin, end) * 1e3 / kTrain);
      spans.add_means(times, stream);
    }
    accelerator.free_event(begin);
    accelerator.free_event(end);
  }
  return times;
}

}  // namespace tokenyard::bench
