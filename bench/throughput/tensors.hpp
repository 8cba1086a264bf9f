/// Tensors that a rank sends and receives while it is measured.
#pragma once

#include "bench/harness/device_memory.hpp"
#include "bench/harness/workload.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::bench {

inline constexpr uint32_t kSets =
    3;  // Input sets used in turn, so that no call finds its rows in a cache.

/// One rank's inputs and outputs in memory that its kernels access.
class Tensors : public DeviceMemory {
 public:
  Tensors(World& world, const Shape& shape, double skew) : DeviceMemory(accelerator_of(world)) {
    for (uint32_t set = 0; set < kSets; ++set) {
      const Workload made = make_workload(shape, world.rank(), set, skew);
      inputs_.push_back({.x = {upload(made.x), DataType::bfloat16, {shape.tokens, shape.hidden}},
                         .topk_idx = {upload(made.topk_idx), {shape.tokens, shape.topk}},
                         .topk_weights = {upload(made.topk_weights), {shape.tokens, shape.topk}}});
    }
    out = {reserve(size_t{shape.tokens} * shape.hidden * 2),
           DataType::bfloat16,
           {shape.tokens, shape.hidden}};
    y = {reserve(size_t{shape.tokens} * shape.ranks * shape.hidden * 2),
         DataType::bfloat16,
         {shape.tokens * shape.ranks, shape.hidden}};
  }
  const DispatchInput& input(uint32_t call) const { return inputs_[call % kSets]; }
  /// Returns the same bits as FP8 rows of half the bytes, with one scale per 128 channels.
  DispatchInput input_fp8(uint32_t call, const Shape& shape) const {
    DispatchInput input = inputs_[call % kSets];
    input.x.type = DataType::float8_e4m3fn;
    input.scales = {y.data, DataType::float32, {shape.tokens, shape.hidden / 128}};
    return input;
  }
  /// The first `rows` of y.
  ConstTensorView results(uint32_t rows) const {
    return {y.data, DataType::bfloat16, {rows, y.shape[1]}};
  }
  TensorView out;  ///< [tokens, hidden] bf16
  TensorView y;    ///< ordinary memory for results, with room for all rows that may arrive

 private:
  std::vector<DispatchInput> inputs_;
};

}  // namespace tokenyard::bench
