/// The report of a dispatch to its host: the counts, or why there are none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "expert_parallel/throughput/kernels/control.hpp"

namespace tokenyard::throughput {

/// In memory shared by host and kernels. Block 0 writes it while rows are still moving: `epoch`
/// last (release), and the host reads that first (acquire). rows_from [ranks] and tokens_per_expert
/// [local experts] follow it.
struct CountsRecord {
  uint32_t epoch;    ///< epoch of the dispatch that the counts belong to
  uint32_t refusal;  ///< a RefusalKind; if not `none`, the other fields hold its cause
  uint32_t rank;
  uint32_t token;            ///< for `format`: the ReadyWord
  uint32_t id_low, id_high;  ///< for `format`: its value on that rank, and on the first present one

  TOKENYARD_HOST_DEVICE uint32_t* rows_from() { return reinterpret_cast<uint32_t*>(this + 1); }
  TOKENYARD_HOST_DEVICE uint32_t* tokens_per_expert(uint32_t ranks) { return rows_from() + ranks; }
  static size_t bytes(uint32_t ranks, uint32_t local_experts) {
    return sizeof(CountsRecord) + (size_t{ranks} + local_experts) * sizeof(uint32_t);
  }
};

}  // namespace tokenyard::throughput
