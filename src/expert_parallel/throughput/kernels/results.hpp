/// Results of experts on their way to where a combine reads them: a row for each received row, of
/// the results of its experts on this rank.
#pragma once

#include <cstdint>

#include "device/macros.hpp"
#include "expert_parallel/throughput/kernels/element_type.hpp"
#include "expert_parallel/throughput/kernels/ring.hpp"

namespace tokenyard::throughput {

/// A row's results are added in the order of its picks, in fp32, each times its weight if so asked,
/// and rounded once to the type.
struct ResultsParams {
  uint32_t topk;       ///< picks that a row may have here
  uint32_t row_bytes;  ///< of a result, and of a sum
  ElementType type;
  const std::byte* y;    ///< [places, row_bytes]
  const int32_t* slots;  ///< [rows, topk] each pick's place, or -1; null: y has the rows themselves
  const float* weights;  ///< [rows, topk], or null: sums are not weighted
  std::byte* to;         ///< [rows, row_bytes]
  uint32_t groups;       ///< of a block: see sum_results_kernel.hpp
  StagePlan plan;        ///< of each group
};

}  // namespace tokenyard::throughput
