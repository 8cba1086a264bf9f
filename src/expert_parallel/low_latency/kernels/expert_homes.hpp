/// The rank that holds an expert, for low-latency kernels: if experts divide evenly, as they mostly
/// do, by a prepared division.
#pragma once

#include <cstdint>

#include "expert_parallel/common/expert_partition.hpp"
#include "expert_parallel/low_latency/kernels/divisor.hpp"

namespace tokenyard::low_latency {

struct ExpertHomes {
  Divisor each;  ///< experts that every rank holds
  ExpertPartition partition;

  /// Requires ranks <= experts.
  static constexpr ExpertHomes of(uint32_t experts, uint32_t ranks) {
    return {Divisor::of(experts / ranks), ExpertPartition::of(experts, ranks)};
  }
  TOKENYARD_HOST_DEVICE uint32_t held_by(uint32_t rank) const { return partition.held_by(rank); }
  TOKENYARD_HOST_DEVICE uint32_t held_at_most() const { return partition.held_at_most(); }
  TOKENYARD_HOST_DEVICE uint32_t first_of(uint32_t rank) const { return partition.first_of(rank); }
  TOKENYARD_HOST_DEVICE uint32_t rank_of(uint32_t expert) const {
    if (partition.even()) [[likely]]
      return each.quotient(expert);
    return partition.rank_of(expert);
  }
};

}  // namespace tokenyard::low_latency
