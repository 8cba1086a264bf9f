#pragma once

#include "fabric/network/probe.hpp"

namespace tokenyard {

/// One rank's part of the measurement.
class Probe {
 public:
  TOKENYARD_DEVICE explicit Probe(const ProbeParams& params)
      : params_(params),
        deadline_(params.wait_context.start()),
        queue_(params.queues.of(params.peer, params.queue)) {}

  TOKENYARD_DEVICE bool run() {
    for (uint32_t turn = 0; turn < kProbeTurns; ++turn)
      if (!take_turn(turn)) return false;
    params_.result->turns = kProbeTurns;
    return begins() ? put_bursts() && await_bursts() : await_bursts() && put_bursts();
  }

 private:
  static constexpr uint32_t kPost = 0, kArrive = 1;
  /// A burst that takes so long tells the rate.
  static constexpr uint64_t kLongEnoughNs = 20'000'000;
  static constexpr uint32_t kBurstMax = 1024;
  /// Added to the other rank's word once no more bursts follow.
  static constexpr uint64_t kNoMore = uint64_t{1} << 32;

  TOKENYARD_DEVICE bool begins() const { return params_.rank < params_.peer; }

  TOKENYARD_DEVICE bool await_next() {
    return await_signal(deadline_, kArrive, params_.peer, params_.arrived, ++seen_);
  }

  TOKENYARD_DEVICE bool take_turn(uint32_t turn) {
    NetworkSource few = params_.source;
    few.bytes = sizeof(uint64_t);
    const uint64_t begin = now_ns();
    if (!begins() && !await_next()) return false;
    if (!queue_.put_and_signal(deadline_, kPost, params_.room, few, params_.word, 1)) return false;
    if (!begins()) return true;
    if (!await_next()) return false;
    params_.result->turn_ns[turn] = now_ns() - begin;
    return true;
  }

  /// Sends bursts of puts, each twice as long as the one before, until one has taken long enough.
  TOKENYARD_DEVICE bool put_bursts() {
    uint64_t took = 0;
    for (uint32_t puts = 1; puts <= kBurstMax && took < kLongEnoughNs; puts *= 2) {
      const uint64_t begin = now_ns();
      for (uint32_t put = 0; put < puts; ++put)
        if (!queue_.put(deadline_, kPost, params_.room, params_.source)) return false;
      if (!queue_.signal(deadline_, kPost, params_.word, 1) || !await_next()) return false;
      took = now_ns() - begin;
      params_.result->puts = puts;
      params_.result->puts_ns = took;
    }
    return queue_.signal(deadline_, kPost, params_.word, kNoMore) && queue_.flush(deadline_, kPost);
  }

  /// Answers each burst of the other rank.
  TOKENYARD_DEVICE bool await_bursts() {
    for (;;) {
      if (!await_next()) return false;
      // Relaxed: the wait above has acquired what it says. The other rank adds kNoMore only once
      // its last burst was answered, so no addition is under way that this load could miss.
      if (load<Order::relaxed, Scope::sys>(params_.arrived) >= kNoMore) break;
      if (!queue_.signal(deadline_, kPost, params_.word, 1)) return false;
    }
    seen_ += kNoMore - 1;
    return queue_.flush(deadline_, kPost);
  }

  const ProbeParams& params_;
  const Deadline deadline_;
  const NetworkQueue queue_;
  uint64_t seen_ = 0;  ///< value of this rank's word that was awaited
};

TOKENYARD_DEVICE void probe(const ProbeParams& params) {
  if (thread::index() != 0 || params.rank == params.peer) return;
  Probe(params).run();
}

TOKENYARD_DEFINE_KERNEL(probe_kernel, probe, ProbeParams, NoShared, 32)

}  // namespace tokenyard
