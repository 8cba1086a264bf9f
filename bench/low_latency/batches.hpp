/// The measured batches: drawn on the host, then copied to memory that kernels read.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/harness/device_memory.hpp"
#include "bench/harness/workload.hpp"
#include "device/accelerator.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::bench {

/// Number of input sets used in turn, so that no call finds its rows in a cache.
inline constexpr uint32_t kSets = 3;

/// Options of a batch.
struct BatchKind {
  bool logfmt = false;  ///< rows of sums travel as ten-bit logarithms
  bool early = false;   ///< dispatch sends the weights, instead of combine
};

struct Batch {
  Shape shape;
  double zipf = 0;  ///< exponent of the experts' popularity; 0: uniform
};

/// Draws distinct experts for every token, the r-th most popular with a weight of 1 / r^zipf.
/// Popular experts are at random positions.
inline std::vector<int64_t> draw_by_popularity(const Batch& of, uint32_t rank, uint32_t set) {
  const Shape& shape = of.shape;
  std::vector<int64_t> experts(shape.experts);
  for (uint32_t expert = 0; expert < shape.experts; ++expert) experts[expert] = expert;
  std::shuffle(experts.begin(), experts.end(), std::mt19937(1));
  std::vector<double> weights;
  for (uint32_t place = 1; place <= shape.experts; ++place)
    weights.push_back(std::pow(place, -of.zipf));
  std::mt19937 random(1000 * set + rank + 7);
  std::discrete_distribution<uint32_t> popular(weights.begin(), weights.end());
  std::vector<int64_t> choices;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    const auto first = static_cast<std::ptrdiff_t>(choices.size());
    while (choices.size() < size_t{token + 1} * shape.topk) {
      const int64_t expert = experts[popular(random)];
      if (std::find(choices.begin() + first, choices.end(), expert) == choices.end())
        choices.push_back(expert);
    }
  }
  return choices;
}

inline Workload draw(const Batch& of, uint32_t rank, uint32_t set) {
  Workload made = make_workload(of.shape, rank, set);
  if (of.zipf > 0) made.topk_idx = draw_by_popularity(of, rank, set);
  return made;
}

/// Returns the largest number of rows that a rank sends to, or receives from, all others together,
/// averaged over the sets.
inline double busiest_remote_rows(const Batch& of) {
  const Shape& shape = of.shape;
  double sum = 0;
  for (uint32_t set = 0; set < kSets; ++set) {
    std::vector<uint32_t> out(shape.ranks), in(shape.ranks);
    for (uint32_t source = 0; source < shape.ranks; ++source) {
      const auto goes = destinations(shape, draw(of, source, set));
      for (size_t at = 0; at < goes.size(); ++at)
        if (const auto target = static_cast<uint32_t>(at % shape.ranks);
            target != source && goes[at])
          ++out[source], ++in[target];
    }
    sum += std::max(*std::max_element(out.begin(), out.end()),
                    *std::max_element(in.begin(), in.end()));
  }
  return sum / kSets;
}

/// One rank's inputs and outputs in memory that its kernels access.
class Tensors : public DeviceMemory {
 public:
  Tensors(World& world, const Batch& of) : DeviceMemory(accelerator_of(world)) {
    for (uint32_t set = 0; set < kSets; ++set) {
      const Workload made = draw(of, world.rank(), set);
      const Shape& shape = of.shape;
      inputs_.push_back({.x = {upload(made.x), DataType::bfloat16, {shape.tokens, shape.hidden}},
                         .topk_idx = {upload(made.topk_idx), {shape.tokens, shape.topk}}});
      weights_.push_back({upload(made.topk_weights), {shape.tokens, shape.topk}});
    }
    out = {reserve(size_t{of.shape.tokens} * of.shape.hidden * 2),
           DataType::bfloat16,
           {of.shape.tokens, of.shape.hidden}};
  }
  /// Returns the input of a dispatch. `early`: with the weights.
  LowLatencyInput input(uint32_t call, LowLatencyRows rows, bool early = false) const {
    LowLatencyInput input = inputs_[call % kSets];
    input.rows = rows;
    if (early) input.topk_weights = weights(call);
    return input;
  }
  ConstTensorView weights(uint32_t call) const { return weights_[call % kSets]; }
  TensorView out;  ///< [tokens, hidden] bf16

 private:
  std::vector<LowLatencyInput> inputs_;
  std::vector<ConstTensorView> weights_;
};

}  // namespace tokenyard::bench
