/// Measures trains of calls (harness/trains.hpp) and the spans of their kernels.
#pragma once

#include <cstring>

#include "bench/harness/report.hpp"
#include "bench/harness/trains.hpp"
#include "bench/low_latency/batches.hpp"

namespace tokenyard::bench {

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

/// Measures trains. `body(call, spans)` enqueues a call. Ranks start each train together.
template <class Body>
TrainTimes time_trains(World& world, Tensors& tensors, Stream stream, uint32_t trains, Launched how,
                       Body body) {
  SpanMemory spans(tensors);
  TrainTimes times;
  const auto enqueue = [&] {
    for (uint32_t call = 0; call < kTrain; ++call) body(call, spans);
  };
  const auto prepare = [&] { spans.reset(accelerator_of(world), stream); };
  run_trains(world, stream, trains, how, enqueue, prepare, [&](double us) {
    times.call.push_back(us);
    spans.add_means(times, stream);
  });
  return times;
}

}  // namespace tokenyard::bench
