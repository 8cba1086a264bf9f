/// Expert results on their way to the buffer that a combine reads: one row per received row, the
/// sum of the results of its experts on this rank.
#pragma once

#include <cstdint>

#include "device/macros.hpp"
#include "expert_parallel/throughput/kernels/element_type.hpp"
#include "expert_parallel/throughput/kernels/ring.hpp"

namespace tokenyard::throughput {

/// A row's results are added in fp32 in the order of its choices, each multiplied by its weight if
/// there are weights, and rounded once to the type.
struct ResultsParams {
  uint32_t topk;       ///< choices that a row may have here
  uint32_t row_bytes;  ///< per result and per sum
  ElementType type;
  const std::byte* y;    ///< [places, row_bytes]
  const int32_t* slots;  ///< [rows, topk] place of each choice, or -1; null: y has the rows
                         ///< themselves
  const float* weights;  ///< [rows, topk], or null: sums are not weighted
  std::byte* to;         ///< [rows, row_bytes]
  uint32_t groups;       ///< per block: see sum_results_kernel.hpp
  StagePlan plan;        ///< per group
};

}  // namespace tokenyard::throughput
