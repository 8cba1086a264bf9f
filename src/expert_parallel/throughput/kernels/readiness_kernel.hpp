/// How block 0 of a dispatch tells who has arrived; readiness.hpp says to whom.
#pragma once

#include <algorithm>

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"
#include "expert_parallel/throughput/kernels/readiness.hpp"

namespace tokenyard::throughput {

/// What a call does as blocks finish that nobody watches.
struct Unwatched {
  DEVICE void block_finished(uint32_t, uint32_t) const {}
  DEVICE void all_finished() const {}
};

/// What a dispatch does that somebody does.
class Watched {
 public:
  /// `knows_experts`: the counts came with this call, and `named` is filled in.
  DEVICE Watched(const Readiness& readiness, const CallDeadline& deadline, bool knows_experts)
      : readiness_(readiness), deadline_(deadline), knows_experts_(knows_experts) {}

  /// By the thread of block 0 that has seen it, with acquire; each of a source's blocks once.
  DEVICE void block_finished(uint32_t source, uint32_t blocks_of_source) const {
    if (readiness_.words == nullptr) return;
    // acq_rel: whoever counts last has what the others have seen.
    const uint32_t before = fetch_add<Order::acq_rel, Scope::gpu>(&readiness_.finished(source), 1);
    if (before + 1 == blocks_of_source)
      // Release: the source's rows, which its blocks' words brought with them.
      store<Order::release, Scope::gpu>(&readiness_.source(source), 1);
  }

  /// By all threads of block 0, each after those blocks that it waits for itself. Experts begin
  /// with the last thread, since the first ones wait for blocks.
  DEVICE void all_finished() const {
    if (readiness_.words == nullptr) return;
    const uint32_t mine = block::threads() - 1 - thread::index();
    for (uint32_t expert = mine; expert < readiness_.local_experts; expert += block::threads()) {
      bool arrived = true;
      for (uint32_t source = 0; source < readiness_.ranks && arrived; ++source)
        if (!knows_experts_ || readiness_.named(source, expert) != 0) arrived = await(source);
      // Release: all that the sources' words brought.
      if (arrived) store<Order::release, Scope::gpu>(&readiness_.expert(expert), 1);
    }
  }

 private:
  DEVICE bool await(uint32_t source) const {
    // Another block of this rank passes on what comes from the source.
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
  const CallDeadline& deadline_;
  bool knows_experts_;
};

/// By threads of block 0 where somebody watches, before it meets and its blocks are waited for:
/// rows of `source` name an expert.
DEVICE void note_named(const Readiness& readiness, uint32_t source, uint32_t local_expert) {
  // Relaxed: several threads write the same.
  store<Order::relaxed, Scope::gpu>(&readiness.named(source, local_expert), 1);
}

}  // namespace tokenyard::throughput
