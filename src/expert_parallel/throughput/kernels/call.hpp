/// Parameters and shared state common to all calls of an ExpertParallel object.
#pragma once

#include <cstdint>

#include "device/memory.hpp"
#include "device/wait.hpp"
#include "expert_parallel/common/absent_ranks.hpp"
#include "expert_parallel/throughput/kernels/control.hpp"
#include "expert_parallel/throughput/kernels/statistics.hpp"

namespace tokenyard::throughput {

/// Words of a rank's own memory that persist between its calls. The epoch is here and not in the
/// parameters so that a CUDA graph can replay a call. The words indexed by parity alternate with
/// the parity of the call's epoch.
struct Workspace {
  uint32_t epoch;            ///< epoch of the previous call
  uint32_t readers;          ///< blocks of the running call that have read `epoch`
  uint32_t claims[2];        ///< by parity: next claim
  uint32_t routes_known[2];  ///< by parity: blocks whose tokens' routes are readable
  uint32_t spreads[2];       ///< by parity: next claim of rows to be spread to their experts
  uint32_t placed[2];        ///< by parity: blocks that have assigned their rows' places by expert
};

/// Returns the epoch of the next call. 0 is left out, since words that no call has written hold it;
/// so is 1 after the wrap, so that parities still alternate.
TOKENYARD_HOST_DEVICE uint32_t epoch_after(uint32_t epoch) {
  return epoch == 0xffffffff ? 2 : epoch + 1;
}

struct CallParams {
  uint32_t rank, ranks;
  uint32_t first_present;  ///< rank with which the others compare their calls: the first that is
                           ///< not absent
  AbsentRanks absent;
  CallKind kind;
  Weights weights;        ///< combine only
  bool comes_later;       ///< combine only: its rows become readable during the call (combine.hpp)
  const uint32_t* route;  ///< epoch of the dispatch that made the route, or null
  FormatWord format;      ///< row format
  ScalesWord scales;      ///< scales that accompany the rows
  uint32_t rows_at;       ///< in kOffsetUnit: where rows may be stored or read
  uint32_t places;        ///< rows that fit here; 0: as many as arrive
  uint32_t beside_at;     ///< in kOffsetUnit: ReadyWord::beside, or 0
  Control control;        ///< windows of all ranks
  Peers arenas;           ///< arenas of all ranks
  Workspace* workspace;
  Statistics statistics;
  uint64_t* moments;         ///< [blocks, kMoments] ns, in memory that the host reads; may be null
  WaitContext wait_context;  ///< deadline of the call, abort flag, and error record
};

/// Barriers at the start of every call, besides those of its kernel; 0 is block::sync()'s.
enum class CallBarrier : uint32_t {
  ready = 5,  ///< block 0: shared memory is ready; the warp that publishes ready words arrives,
              ///< others wait
  known = 6,  ///< block 0: CallShared is filled; the others arrive, that warp waits
};

/// A block's knowledge of the call, in shared memory.
struct CallShared {
  bool failed;  ///< an earlier call has failed
  uint32_t epoch;
  uint32_t route_epoch;        ///< epoch of the route that is reused, or 0
  uint64_t moments[kMoments];  ///< ns; 0: not reached
};

/// Values of the peers' ready words, in shared memory. Those of an absent rank are zeros: it has no
/// blocks, so nothing is awaited of it, and no rows.
struct ReadyWords {
  uint32_t* words;  ///< [kReadyWords][ranks]
  uint32_t ranks;

  TOKENYARD_HOST_DEVICE uint32_t& of(ReadyWord word, uint32_t rank) const {
    return words[static_cast<uint32_t>(word) * ranks + rank];
  }
  TOKENYARD_HOST_DEVICE CallWord call(uint32_t rank) const { return {of(ReadyWord::call, rank)}; }
  TOKENYARD_HOST_DEVICE uint32_t blocks(uint32_t rank) const { return call(rank).blocks(); }
  /// Returns the rows that a rank has places for, given `coming` rows that it will receive.
  TOKENYARD_HOST_DEVICE uint32_t places(uint32_t rank, uint32_t coming) const {
    const uint32_t named = of(ReadyWord::places, rank);
    return named == 0 ? coming : named;
  }
  /// Returns the offset of a rank's rows (below: of a combine's weights) from the base of its
  /// arena.
  TOKENYARD_HOST_DEVICE size_t rows_at(uint32_t rank) const {
    return size_t{of(ReadyWord::rows, rank)} * kOffsetUnit;
  }
  TOKENYARD_HOST_DEVICE size_t weights_at(uint32_t rank) const {
    return size_t{of(ReadyWord::beside, rank)} * kOffsetUnit;
  }
};

/// How long block 0 has waited for each rank's ready words and for it to finish, in shared memory.
/// The words start as zero.
struct Waits {
  uint32_t* words;  ///< [2][ranks] in kWaitUnitNs
  uint32_t ranks;

  TOKENYARD_HOST_DEVICE uint32_t& ready_word(uint32_t rank) const { return words[rank]; }
  TOKENYARD_HOST_DEVICE uint32_t& finish(uint32_t rank) const { return words[ranks + rank]; }
};
inline constexpr uint32_t kWaitWords = 2;
/// Unit of a call's waits, rounded up, so that a short one counts: 32 bits of it are four and
/// a half minutes.
inline constexpr uint32_t kWaitUnitNs = 64;

/// A ready word that differed, for the error record of a call that is refused because ranks made
/// different calls: which one, its value, and the rank that it should have been as on.
struct DifferingWord {
  uint64_t bits;
  static constexpr uint32_t kWordBits = 8;
  TOKENYARD_HOST_DEVICE static DifferingWord of(ReadyWord word, uint32_t than, uint32_t value) {
    return {(uint64_t{than} << kWordBits | static_cast<uint32_t>(word)) << 32 | value};
  }
  TOKENYARD_HOST_DEVICE ReadyWord word() const {
    return static_cast<ReadyWord>(bits >> 32 & ((1u << kWordBits) - 1));
  }
  TOKENYARD_HOST_DEVICE uint32_t than() const {
    return static_cast<uint32_t>(bits >> (32 + kWordBits));
  }
  TOKENYARD_HOST_DEVICE uint32_t value() const { return static_cast<uint32_t>(bits); }
};

}  // namespace tokenyard::throughput
