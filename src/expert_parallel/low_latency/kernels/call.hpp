/// Parameters and state common to dispatch and combine.
#pragma once

#include <cstdint>

#include "device/wait.hpp"
#include "expert_parallel/low_latency/kernels/phase.hpp"
#include "expert_parallel/low_latency/kernels/window.hpp"

namespace tokenyard::low_latency {

inline constexpr uint32_t kBlocksMax = 512;

/// Epochs of the last call's sending and receiving parts.
struct alignas(8) Progress {
  uint32_t sent, received;
};

/// Words of a rank's own memory that persist between its calls.
struct Workspace {
  /// [kind][block]. Each block reads only its own word, so no block waits until another has read
  /// one. The blocks of any grid together advance all words.
  Progress progress[kKinds][kBlocksMax];
  /// Last heartbeat of a rank, and when this rank first saw it. One word, so that a reader of the
  /// heartbeat also gets its time.
  struct alignas(8) Heard {
    uint32_t heartbeat, at;
  };
  uint32_t heartbeat;  ///< last heartbeat sent
  /// [parity of a dispatch] ~choice of the first choice of this rank that is no expert, or 0. Each
  /// dispatch resets the next one's.
  uint32_t first_mistake[2];
  uint32_t mistakes;  ///< mistakes counted since one thread began to report them to the host; 0:
                      ///< none reports

  // Behind these, words per rank:
  TOKENYARD_HOST_DEVICE Heard* heard(uint32_t rank) {
    return reinterpret_cast<Heard*>(this + 1) + rank;
  }
  /// Returns the word of a source: a Verdict. Each dispatch resets those of the other parity for
  /// the next one. `parity`: of a dispatch.
  TOKENYARD_HOST_DEVICE uint32_t* verdict(uint32_t ranks, uint32_t parity, uint32_t source) {
    return reinterpret_cast<uint32_t*>(heard(ranks)) + parity * ranks + source;
  }
  static constexpr size_t bytes(uint32_t ranks) {
    return sizeof(Workspace) + ranks * (sizeof(Heard) + 2 * sizeof(uint32_t));
  }
};

/// Whether a source took part in a dispatch, as decided by the first block that knew.
enum class Verdict : uint32_t { open, present, absent };

/// A failure word, a report and an abort flag per rank. A rank whose failure word is not
/// Failure::none is masked.
struct Masks {
  uint32_t* failed;              ///< [ranks] device memory
  WaitReport* reports;           ///< [ranks] host-visible
  const AbortWord* abort_flags;  ///< [ranks] host-visible

  /// Has no deadline of its own: liveness_kernel.hpp decides when a wait has timed out.
  TOKENYARD_DEVICE WaitContext wait_context(uint32_t rank) const {
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
  bool whole_gpu;        ///< the call may occupy every multiprocessor
  /// [ranks] other than 0: that rank is masked from this call on. Null: none is.
  const uint32_t* left_out;
  /// Sending part of a combine: the first blocks, which write to peers' staging. Placed beside the
  /// fields that a block reads first.
  uint32_t staging_blocks;
  Windows windows;
  Masks masks;
  Workspace* workspace;
  uint32_t timeout;          ///< of the whole call for a rank that shows no sign of life, in
                             ///< kTimeUnitNs
  uint32_t polls_per_check;  ///< unsuccessful polls between reads of the clock
  uint64_t* span_ns;         ///< [2][2], see LowLatencyCall; may be null

  TOKENYARD_DEVICE bool leaves_out(uint32_t other) const {
    return left_out != nullptr && load_cached(left_out + other) != 0;
  }
};

/// Returns the rank `places` after this one, modulo the number of ranks. `places` is at most that.
TOKENYARD_DEVICE uint32_t rank_after(const CallParams& params, uint32_t places) {
  const uint32_t rank = params.rank + places;
  return rank < params.ranks ? rank : rank - params.ranks;
}

}  // namespace tokenyard::low_latency
