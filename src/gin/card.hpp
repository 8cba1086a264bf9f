/// A kernel that plays a network card over NCCL's device-side networking (GIN): each warp takes one
/// queue's requests from its ring and hands them to GIN. `Gin` is what a warp asks of it, and all
/// that this protocol knows of NCCL:
///
///     void put(const CardPeer&, uint64_t target, uint64_t source, uint64_t bytes)
///     void signal(const CardPeer&, uint64_t word, uint64_t addend, SignalKind)
///     bool signal_behind_all(const CardPeer&, uint64_t word, uint64_t addend)
///     void get(const CardPeer&, uint64_t word, uint64_t to)
///     void begin_flush(const CardPeer&, bool after_get)
///     bool flushed()
///
/// Places are byte offsets in the peer's arena and in this rank's. GIN promises, and this needs:
///
///   1. A strong signal is seen after all puts that were posted before it to its peer. Nothing else
///      is ordered: puts land in any order, torn, late, and read their sources until a flush.
///   2. When the flush that `begin_flush` began has ended, the sources of all that was posted
///      before it were read, and what `get` has fetched is there. `flushed` waits for a moment at
///      most, unless a get is among them, which `after_get` says: GIN then posts a step of its own
///      per look, and forgets it when the look ends too early.
///   3. The signals of a queue take effect in order. NCCL's ways all do so, but its documentation
///      does not say it: only `drain` relies on it, and only `signal_behind_all`, which may return
///      false to say that it has to be asked again.
///
/// GIN checks no keys and no ranges, so the card does. Its queues hold few operations, and a post
/// to a full one waits without limit: so the card never has more than kOperations under way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/network.hpp"
#include "device/wait.hpp"

namespace tokenyard::gin {

/// Operations of a queue whose sources have not been read: as many as GIN's own queue holds at
/// least.
inline constexpr uint32_t kOperations = 32;

enum class SignalKind : uint8_t {
  strong,
  weak,  ///< not behind the puts before it: a mutant's
};

/// A rank's arena, as others put there.
struct CardPeer {
  MemoryKey key;
  uint32_t member;  ///< its rank in NCCL's communicator
  uint64_t bytes;
  uint64_t asked;  ///< place of its words that others add to, [ranks][queues_per_peer]
};

/// The part of a queue's state that outlives a run of the kernel.
struct CardQueueState {
  uint32_t issued;           ///< requests that GIN has
  uint32_t operations;       ///< of theirs whose sources may still be read
  uint32_t ended;            ///< whether a request was refused
  uint64_t flush_waited_ns;  ///< for the flush under way, in runs before
  uint32_t fetching;         ///< whether a get is among the operations
  uint64_t asks;             ///< signals to the peer's word of this queue
};

/// The card of one rank. A run of the kernel ends when the card has been idle for `idle_ns`, since
/// a GPU on which a kernel runs for ever can neither free memory nor be waited for; it is run again
/// when requests come.
struct CardParams {
  static constexpr uint32_t kWarps = 8;  ///< per block
  WaitContext wait_context;              ///< no deadline; the abort flag stops the card
  uint64_t idle_ns;                      ///< 0: runs until it is stopped
  uint64_t timeout_ns;                   ///< after which a flush counts as failed
  uint32_t run;                          ///< number of this run, from 1
  uint32_t rank, queues_per_peer;
  uint32_t queues;           ///< at most blocks * kWarps
  QueuePair* const* pairs;   ///< [queues]
  CardQueueState* states;    ///< [queues]
  const CardPeer* peers;     ///< [ranks]
  std::byte* arena;          ///< this rank's
  uint64_t stage;            ///< place in it of [queues][QueuePair::kSlots] inline puts
  uint64_t seen;             ///< place in it of [queues] words that `get` fetches
  const uint32_t* gone;      ///< [ranks] abort words: requests to these ranks are dropped
  AbortWord* refused;        ///< the rank's abort word, which a refusal sets to kRefused
  const uint32_t* drains;    ///< set while the host waits for `settled`
  uint32_t* ending_run;      ///< the last run that was idle
  uint64_t* last_active_ns;  ///< when a queue last had something to do
};

}  // namespace tokenyard::gin
