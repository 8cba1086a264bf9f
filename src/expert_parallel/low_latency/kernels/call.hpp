/// What dispatch and combine have in common.
#pragma once

#include <cstdint>

#include "device/wait.hpp"
#include "expert_parallel/low_latency/kernels/phase.hpp"
#include "expert_parallel/low_latency/kernels/window.hpp"

namespace tokenyard::low_latency {

inline constexpr uint32_t kBlocksMax = 512;

/// Epochs of the last call's parts.
struct alignas(8) Progress {
  uint32_t sent, received;
};

/// Words of a rank's own memory that outlive its calls.
struct Workspace {
  /// [kind][block]. A block reads its own word and no other, so none waits for another's look at
  /// it; whatever the grid, its blocks advance all of them.
  Progress progress[kKinds][kBlocksMax];
  /// Of a rank: its last pulse, and when it was first seen here. One word, so that who knows the
  /// pulse knows when it came.
  struct alignas(8) Heard {
    uint32_t heartbeat, at;
  };
  Heard heard[kRanksMax];
  uint32_t heartbeat;  ///< the last one sent
  /// [parity of a dispatch][source]: a Verdict. Those of the other parity are readied by each
  /// dispatch for the next.
  uint32_t verdicts[2][kRanksMax];
  /// [parity of a dispatch] ~pick of the first of this rank's picks that is no expert, or 0. Each
  /// dispatch readies that of the next.
  uint32_t first_mistake[2];
  uint32_t mistakes;  ///< noted by threads of which one is telling the host
};

/// Whether a source took part in a dispatch, as the first block that knew has decided.
enum class Verdict : uint32_t { open, present, absent };

/// A failure word, a report and an alarm for every rank that can be awaited. A rank whose word is
/// not Failure::none is masked.
struct Masks {
  uint32_t* failed;              ///< [ranks] device memory
  WaitReport* reports;           ///< [ranks] host-visible
  const AbortWord* abort_flags;  ///< [ranks] host-visible

  /// Without an end of its own: when a wait has lasted too long is decided in liveness_kernel.hpp.
  DEVICE WaitContext wait_context(uint32_t rank) const {
    return {.timeout_ns = UINT64_MAX,
            .failed = failed + rank,
            .abort_flag = abort_flags + rank,
            .report = reports + rank};
  }
};

struct CallParams {
  uint32_t rank, ranks;
  Part part;
  uint32_t send_blocks;  ///< the first blocks of the grid send, the others receive
  bool whole_gpu;        ///< the call may take every multiprocessor
  RankSet active;        ///< the others are masked from this call on
  /// Of a combine that sends: the first so many blocks write to peers' staging. It stands beside
  /// what a block asks for first.
  uint32_t staging_blocks;
  Windows windows;
  Masks masks;
  Workspace* workspace;
  uint32_t timeout;          ///< of the whole call, for a rank that shows no life; kTimeUnitNs
  uint32_t polls_per_check;  ///< how often a poll that finds nothing looks at the clock
  uint64_t* span_ns;         ///< [2][2], as LowLatencyCall says; may be null
};

/// The rank that comes `places` after this one, no more than all of them; after the last comes 0.
DEVICE uint32_t rank_after(const CallParams& params, uint32_t places) {
  const uint32_t rank = params.rank + places;
  return rank < params.ranks ? rank : rank - params.ranks;
}

}  // namespace tokenyard::low_latency
