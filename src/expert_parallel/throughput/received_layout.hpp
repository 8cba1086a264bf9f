/// How what a rank receives lies in its arena. One type for the host, which sizes it, and for the
/// kernels of its peers, which write it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"
#include "expert_parallel/throughput/control.hpp"

namespace tokenyard::throughput {

/// Metadata for the most rows that can come, then the rows, last, so that the block can be trimmed
/// to those that did come. Peers are told where the rows begin; the rest lies before.
struct ReceivedLayout {
  uint32_t rows_max, topk;

  HOST_DEVICE size_t ids_at() const { return 0; }  ///< [rows, topk] int32
  HOST_DEVICE size_t weights_at() const {          ///< [rows, topk] fp32
    return aligned(size_t{rows_max} * topk * sizeof(int32_t));
  }
  HOST_DEVICE size_t sources_at() const {  ///< [rows] int32
    return 2 * weights_at();
  }
  HOST_DEVICE size_t rows_at() const {  ///< [rows, hidden] bf16
    return aligned(sources_at() + size_t{rows_max} * sizeof(int32_t));
  }

 private:
  /// Each part begins where peers can be told of it by a word (kOffsetUnit).
  HOST_DEVICE static size_t aligned(size_t bytes) {
    return (bytes + kOffsetUnit - 1) / kOffsetUnit * kOffsetUnit;
  }
};

}  // namespace tokenyard::throughput
