/// What every call of an ExpertParallel object has in common, whichever way rows move.
#pragma once

#include <cstdint>

#include "device/memory.hpp"
#include "device/wait.hpp"
#include "expert_parallel/throughput/kernels/control.hpp"
#include "expert_parallel/throughput/kernels/statistics.hpp"

namespace tokenyard::throughput {

/// Words of a rank's own memory that outlive its calls. The epoch lives here and not in the
/// parameters, so that a CUDA graph can replay a call.
struct Workspace {
  uint32_t epoch;            ///< of the call before
  uint32_t readers;          ///< blocks of the running call that have read it
  uint32_t claims[2];        ///< by parity of the call's epoch: the next claim
  uint32_t routes_known[2];  ///< by parity: blocks whose tokens' routes can be read
  uint32_t spreads[2];       ///< by parity: the next claim of rows to be spread to their experts
  uint32_t placed[2];        ///< by parity: blocks that have given their rows places by expert
};

struct CallParams {
  uint32_t rank, ranks;
  CallKind kind;
  Weights weights;        ///< of a combine
  bool comes_later;       ///< of a combine: its rows, see combine.hpp
  const uint32_t* route;  ///< epoch of the dispatch that made the route in use, or null
  FormatWord format;      ///< of the rows
  ScalesWord scales;      ///< beside them
  uint32_t rows_at;       ///< in kOffsetUnit: where rows may be stored, or are to be read
  uint32_t places;        ///< rows that there is room for; 0: for all that come
  uint32_t beside_at;     ///< in kOffsetUnit: ReadyWord::beside, or 0
  Control control;        ///< everybody's windows
  Peers arenas;           ///< everybody's arenas
  Workspace* workspace;
  Statistics statistics;
  uint64_t* moments;         ///< [blocks, kMoments] ns, in memory that the host reads; or null
  WaitContext wait_context;  ///< how long the call may take, who may end it, where it reports
};

/// Barriers that every call begins with, beside those of its kernel; 0 is block::sync()'s.
enum class CallBarrier : uint32_t {
  ready = 5,  ///< block 0: the others await that shared memory is ready, who says hello arrives
  known = 6,  ///< block 0: who says hello awaits what the others know
};

/// What a block knows of the call, in shared memory.
struct CallShared {
  bool failed;  ///< a call before this one has
  uint32_t epoch;
  uint32_t route_epoch;        ///< of the route that is used again, or 0
  uint64_t moments[kMoments];  ///< ns; 0: not reached
};

/// What the peers' hellos said, in shared memory.
struct ReadyWords {
  uint32_t* words;  ///< [kReadyWords][ranks]
  uint32_t ranks;

  HOST_DEVICE uint32_t& of(ReadyWord word, uint32_t rank) const {
    return words[static_cast<uint32_t>(word) * ranks + rank];
  }
  HOST_DEVICE CallWord call(uint32_t rank) const { return {of(ReadyWord::call, rank)}; }
  HOST_DEVICE uint32_t blocks(uint32_t rank) const { return call(rank).blocks(); }
  /// Rows that a rank has places for, of `coming` that will come.
  HOST_DEVICE uint32_t places(uint32_t rank, uint32_t coming) const {
    const uint32_t named = of(ReadyWord::places, rank);
    return named == 0 ? coming : named;
  }
  /// Where a rank's rows, or a combine's weights, are from the base of its arena.
  HOST_DEVICE size_t rows_at(uint32_t rank) const {
    return size_t{of(ReadyWord::rows, rank)} * kOffsetUnit;
  }
  HOST_DEVICE size_t weights_at(uint32_t rank) const {
    return size_t{of(ReadyWord::beside, rank)} * kOffsetUnit;
  }
};

/// How long block 0 has waited for each rank, in shared memory, words that begin as zero: once to
/// hear from it, once for it to finish.
struct Waits {
  uint32_t* words;  ///< [2][ranks] ns
  uint32_t ranks;

  HOST_DEVICE uint32_t& ready_word(uint32_t rank) const { return words[rank]; }
  HOST_DEVICE uint32_t& finish(uint32_t rank) const { return words[ranks + rank]; }
};
inline constexpr uint32_t kWaitWords = 2;

/// In a report of a call that was refused because the ranks did not make the same one: which word
/// of the hello differed, and its value.
HOST_DEVICE uint64_t differing(ReadyWord word, uint32_t value) {
  return static_cast<uint64_t>(word) << 32 | value;
}

}  // namespace tokenyard::throughput
