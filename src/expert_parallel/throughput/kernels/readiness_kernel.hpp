/// Publishes arrivals from block 0 of a dispatch. See readiness.hpp for the protocol.
#pragma once

#include <algorithm>

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/common/absent_ranks.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"
#include "expert_parallel/throughput/kernels/readiness.hpp"

namespace tokenyard::throughput {

/// Watcher of a call without readiness words.
struct Unwatched {
  TOKENYARD_DEVICE void block_finished(uint32_t, uint32_t) const {}
  TOKENYARD_DEVICE void all_finished() const {}
};

/// Watcher of a dispatch with readiness words.
class Watched {
 public:
  /// `knows_experts`: counts were exchanged in this call, so `named` is filled in.
  TOKENYARD_DEVICE Watched(const Readiness& readiness, const AbsentRanks& absent,
                           const CallDeadline& deadline, bool knows_experts)
      : readiness_(readiness),
        absent_(absent),
        deadline_(deadline),
        knows_experts_(knows_experts) {}

  /// Counts a finished block. Called once per block by the thread of block 0 that acquired its
  /// word.
  TOKENYARD_DEVICE void block_finished(uint32_t source, uint32_t blocks_of_source) const {
    if (readiness_.words == nullptr) return;
    // acq_rel: the thread that counts last inherits what the others have acquired.
    const uint32_t before = fetch_add<Order::acq_rel, Scope::gpu>(&readiness_.finished(source), 1);
    if (before + 1 == blocks_of_source)
      // Release: orders the source's rows, acquired with its blocks' words, before the flag.
      store<Order::release, Scope::gpu>(&readiness_.source(source), 1);
  }

  /// Publishes experts. Called by all threads of block 0, each after the blocks that it waits for
  /// itself. Starts with the last thread because the first ones wait for blocks.
  TOKENYARD_DEVICE void all_finished() const {
    if (readiness_.words == nullptr) return;
    const uint32_t mine = block::threads() - 1 - thread::index();
    // No row comes from an absent rank, so all of them have arrived. Before any wait of this
    // thread, since other threads wait for these words too. Relaxed: they release no rows.
    for (uint32_t source = mine; source < readiness_.ranks; source += block::threads())
      if (absent_.contains(source) && !mutated())
        store<Order::relaxed, Scope::gpu>(&readiness_.source(source), 1);
    for (uint32_t expert = mine; expert < readiness_.local_experts; expert += block::threads()) {
      bool arrived = true;
      for (uint32_t source = 0; source < readiness_.ranks && arrived; ++source)
        if (!knows_experts_ || readiness_.named(source, expert) != 0) arrived = await(source);
      // Release: orders the rows of all its sources, acquired by await(), before the flag.
      if (arrived) store<Order::release, Scope::gpu>(&readiness_.expert(expert), 1);
    }
  }

 private:
  TOKENYARD_DEVICE bool await(uint32_t source) const {
    // Another thread of this rank forwards what comes from the source.
    Awaited what{.phase = static_cast<uint32_t>(Phase::dispatch_arrivals),
                 .rank = source,
                 .expected = 1,
                 .from_rank = false};
    return wait_until(deadline_, what, [&] {
      what.seen = load<Order::acquire, Scope::gpu>(&readiness_.source(source));
      return what.seen == 1;
    });
  }

  const Readiness& readiness_;
  const AbsentRanks& absent_;
  const CallDeadline& deadline_;
  bool knows_experts_;
};

/// Notes that rows of `source` use an expert. Called by threads of block 0 if readiness words were
/// asked for, before the block synchronizes and waits for others.
TOKENYARD_DEVICE void note_named(const Readiness& readiness, uint32_t source,
                                 uint32_t local_expert) {
  // Relaxed: all threads write the same value, and the block's barrier orders it before all reads.
  store<Order::relaxed, Scope::gpu>(&readiness.named(source, local_expert), 1);
}

}  // namespace tokenyard::throughput
