/// The steps of a turn, which all warps of a block that move data take together: first one warp
/// waits for what the step needs, then all of them move bytes, then the same warp says so.
#pragma once

#include "collectives/device/kernels/link_ends_kernel.hpp"
#include "collectives/device/kernels/spans_kernel.hpp"

namespace tokenyard::device_collectives {

/// The warps of a block that move data. Each thread has one of its own.
class Movers {
 public:
  TOKENYARD_DEVICE explicit Movers(BetweenShared& shared) : shared_(shared) {}

  TOKENYARD_DEVICE static uint32_t warps() { return warp::count() - 1; }
  TOKENYARD_DEVICE static bool is_first() { return warp::index() == 0; }

  /// Ends a part of a step, and orders the memory accesses of all movers. Returns whether all of
  /// them go on.
  TOKENYARD_DEVICE bool meet(bool goes_on) {
    uint32_t& stop = shared_.stop[steps_++ & 1];
    // Relaxed: the barrier orders it.
    if (!goes_on) store<Order::relaxed, Scope::block>(&stop, 1u);
    NamedBarrier(BetweenBarrier::moved).sync(warps() * kWarpLanes);
    return load<Order::relaxed, Scope::block>(&stop) == 0;
  }
  /// Divides `bytes` among the warps: calls `move(begin, bytes)` for this warp's spans. Another
  /// warp begins each time, so that short spans are spread.
  template <class Move>
  TOKENYARD_DEVICE void share(uint32_t bytes, Move move) {
    const uint32_t number = (warp::index() + turns_++) % warps();
    for (uint32_t at = number * kSpan; at < bytes; at += warps() * kSpan)
      move(at, std::min(uint32_t{kSpan}, bytes - at));
  }
  template <class From, class To>
  TOKENYARD_DEVICE void copy(From from, To to, uint32_t bytes) {
    share(bytes, [&](uint32_t at, uint32_t count) {
      copy_span(from + spans::distance(at), to + spans::distance(at), count);
    });
  }

 private:
  static constexpr uint32_t kSpan = 8 * spans::kRow;

  BetweenShared& shared_;
  uint32_t steps_ = 0, turns_ = 0;
};

/// Calls `body(number)` for each link in the first warp, always in the same lane: a queue has one
/// user. Returns whether all did.
template <class Body>
TOKENYARD_DEVICE bool for_links(const BetweenWork& work, Body body) {
  bool all = true;
  if (!Movers::is_first()) return true;
  for (uint32_t number = warp::lane(); number < work.params.link_count; number += kWarpLanes)
    all = body(number) && all;
  return all;
}
/// The same for each place of this host but this rank's own.
template <class Body>
TOKENYARD_DEVICE bool for_neighbours(const BetweenWork& work, Body body) {
  bool all = true;
  if (!Movers::is_first()) return true;
  for (uint32_t place = warp::lane(); place < work.hosts().locals; place += kWarpLanes)
    if (place != work.hosts().place) all = body(place) && all;
  return all;
}

/// Waits until all ranks of this host have read the chunks of this rank that were in a round's
/// places before. Called by the first warp.
TOKENYARD_DEVICE bool await_read(const BetweenWork& work, uint32_t channel, uint64_t round) {
  if (round < kHostRounds) return true;
  const bool all = for_neighbours(work, [&](uint32_t place) {
    return await_rounds(work, work.params.near.consumed(work.parity, channel, place),
                        work.hosts().local(place), round + 1 - kHostRounds, WaitPhase::place);
  });
  if (Movers::is_first()) fence_acquire<Scope::sys>();
  return all;
}
/// Waits until all ranks of this host have stored their chunks of a round here.
TOKENYARD_DEVICE bool await_stored(const BetweenWork& work, uint32_t channel, uint64_t round) {
  const bool all = for_neighbours(work, [&](uint32_t place) {
    return await_rounds(work, work.params.near.filled(work.parity, channel, place),
                        work.hosts().local(place), round + 1, WaitPhase::chunk);
  });
  if (Movers::is_first()) fence_acquire<Scope::sys>();
  return all;
}
/// Stores in a word of all ranks of this host that this rank has ended a round. Each lane's word is
/// a release of what all movers have done before the step's end.
TOKENYARD_DEVICE void publish_to_neighbours(const BetweenWork& work, size_t offset,
                                            uint64_t round) {
  for_neighbours(work, [&](uint32_t place) {
    fence_release<Scope::sys>();
    store<Order::relaxed, Scope::sys>(work.near_word(work.hosts().local(place), offset),
                                      work.word_of(round + 1));
    return true;
  });
}
TOKENYARD_DEVICE void publish_stored(const BetweenWork& work, uint32_t channel, uint64_t round) {
  publish_to_neighbours(work, work.params.near.filled(work.parity, channel, work.hosts().place),
                        round);
}
TOKENYARD_DEVICE void publish_read(const BetweenWork& work, uint32_t channel, uint64_t round) {
  publish_to_neighbours(work, work.params.near.consumed(work.parity, channel, work.hosts().place),
                        round);
}

}  // namespace tokenyard::device_collectives
