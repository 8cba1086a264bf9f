/// Tensors that a rank sends and receives while it is measured.
#pragma once

#include "bench/harness/device_memory.hpp"
#include "bench/harness/workload.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::bench {

inline constexpr uint32_t kSets =
    3;  // Input sets used in turn, so that no call finds its rows in a cache.

/// One rank's inputs and outputs in memory that its kernels access.
class Tensors : public DeviceMemory {
 public:
  Tensors(World& world, const Shape& shape, double skew) : DeviceMemory(world.accelerator()) {
    for (uint32_t set = 0; set < kSets; ++set) {
      const Workload made = make_workload(shape, world.rank(), set, skew);
      inputs_.push_back({.x = upload(made.x),
                         .topk_idx = upload(made.topk_idx),
                         .topk_weights = upload(made.topk_weights),
                         .tokens = shape.tokens});
    }
    out = reserve(size_t{shape.tokens} * shape.hidden * 2);
    y = reserve(size_t{shape.tokens} * shape.ranks * shape.hidden * 2);
  }
  const DispatchInput& input(uint32_t call) const { return inputs_[call % kSets]; }
  /// Returns the same bits as FP8 rows of half the bytes, with one scale per 128 channels.
  DispatchInput input_fp8(uint32_t call, const Shape& shape) const {
    DispatchInput input = inputs_[call % kSets];
    input.format = {.type = ElementType::fp8_e4m3, .scale_words = shape.hidden / 128};
    input.scales = y;
    return input;
  }
  void* out;  ///< [tokens, hidden] bf16
  void* y;    ///< ordinary memory for results, with room for all rows that may arrive

 private:
  std::vector<DispatchInput> inputs_;
};

}  // namespace tokenyard::bench
