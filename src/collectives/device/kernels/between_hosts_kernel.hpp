/// The kernel of collectives among ranks of several hosts. See between_hosts.hpp.
#pragma once

#include "collectives/device/kernels/host_movements_kernel.hpp"
#include "collectives/device/kernels/host_reductions_kernel.hpp"

namespace tokenyard::device_collectives {

/// Works off one channel. Called by all movers; returns whether they go on.
template <class Steps>
TOKENYARD_DEVICE bool work_off(Steps steps) {
  const uint64_t rounds = steps.rounds();
  if (rounds == 0) return true;
  const uint32_t second_lag = steps.second_lag(), third_lag = steps.third_lag();
  for (uint64_t turn = 0; turn < rounds + third_lag; ++turn) {
    if (turn < rounds && !steps.first(turn)) return false;
    if (turn >= second_lag && turn - second_lag < rounds && !steps.second(turn - second_lag))
      return false;
    if (turn >= third_lag && !steps.third(turn - third_lag)) return false;
  }
  steps.end();
  return true;
}

/// Moves the data of this block's channels. Called by all movers.
template <class Steps>
TOKENYARD_DEVICE void move_between(const BetweenWork& work, BetweenShared& shared) {
  Movers movers(shared);
  if (block::index() == 0 && !work.params.with_greeting)
    for_links(work, [&](uint32_t link) { return LinkEnd(work, 0, link).greet(); });
  const uint32_t channels = work.params.near.channels;
  for (uint32_t channel = block::index(); channel < channels; channel += grid::blocks())
    if (!work_off(Steps(work, movers, channel))) return;
}

/// Stores a call word, on all ranks of this host, for `source`. Called by one thread, after a fence
/// that releases what the word stands for.
TOKENYARD_DEVICE void store_on_host(const BetweenWork& work, uint32_t source,
                                    const CallWord& word) {
  for (uint32_t place = 0; place < work.hosts().locals; ++place)
    store<Order::relaxed, Scope::sys>(
        work.call.windows.call(work.hosts().local(place), static_cast<uint32_t>(work.epoch & 1),
                               source),
        word.bits);
}

/// Passes the greetings of rail peers on to the ranks of this host, behind what `pass_data(link)`
/// passes on. Called by a warp.
template <class PassData>
TOKENYARD_DEVICE bool pass_greetings_on(const BetweenWork& work, PassData pass_data) {
  bool all = true;
  for (uint32_t number = warp::lane(); number < work.params.link_count; number += kWarpLanes) {
    const LinkEnd link(work, 0, number);
    const CallWord word = link.await_greeting();
    if (!word.is_of(work.epoch)) {
      all = false;
      continue;
    }
    if (work.hosts().peer_on(work.hosts().host, link.rank()) != work.call.rank) continue;
    pass_data(link);
    // Passes on what the greeting releases.
    fence<Scope::sys>();
    store_on_host(work, link.rank(), word);
  }
  return warp::all(all);
}

/// Waits for the call word of a rank, from it or from the rank here that passes it on.
TOKENYARD_DEVICE CallWord await_word_of(const BetweenWork& work, uint32_t rank) {
  Awaited what{.phase = static_cast<uint32_t>(WaitPhase::call),
               .rank = work.call.empty.slot_of(rank),
               .expected = static_cast<uint32_t>(work.epoch),
               .from_rank = work.hosts().is_here(rank)};
  const Peer<Bytes16> at =
      work.call.windows.call(work.call.rank, static_cast<uint32_t>(work.epoch & 1), rank);
  CallWord word{};
  const bool came = wait_until(work.deadlines.words, what, [&] {
    word = {load<Order::relaxed, Scope::sys>(at)};
    what.seen = word.bits.word[0];
    return word.is_of(work.epoch);
  });
  return came ? word : CallWord{};
}

/// Waits for the call words of all ranks, first of those of this host: a rank that passes nothing
/// on is named rather than those whose words it holds. Compares them with rank 0's. Called by a
/// warp.
TOKENYARD_DEVICE bool await_all_words(const BetweenWork& work, const BlockDeadline& deadline) {
  const uint32_t ranks = work.call.ranks;
  bool all = true;
  for (uint32_t place = warp::lane(); place < work.hosts().locals; place += kWarpLanes)
    all = await_word_of(work, work.hosts().local(place)).is_of(work.epoch) && all;
  if (!warp::all(all)) return false;
  Signature on_rank_0{};
  for (uint32_t first = 0; first < ranks; first += kWarpLanes) {
    const uint32_t rank = first + warp::lane();
    CallWord word{};
    if (rank < ranks) word = await_word_of(work, rank);
    if (!warp::all(rank >= ranks || word.is_of(work.epoch))) return false;
    const Signature theirs = word.signature();
    if (first == 0) on_rank_0 = {warp::shuffle(theirs.what, 0), warp::shuffle(theirs.size, 0)};
    const uint32_t others = warp::ballot(rank < ranks && !(theirs == on_rank_0));
    if (others == 0) continue;
    if (warp::lane() == first_bit(others)) refuse(deadline, rank, on_rank_0, theirs);
    return false;
  }
  // Acquires the ends of all ranks' earlier calls, and for a barrier all that they did before it.
  fence_acquire<Scope::sys>();
  return true;
}

/// `Steps`: HostMovements or HostReductions, which take the compiler long for each type. So each
/// group of types is a kernel of its own (../CMakeLists.txt).
template <class Steps>
TOKENYARD_DEVICE void exchange_between_hosts(const BetweenHostsParams& params) {
  auto& shared = block::shared<BetweenShared>();
  const CallParams& call = params.call;
  const BlockDeadline deadline = begin_deadline(call);
  if (thread::index() == 0) shared.stop[0] = shared.stop[1] = 0;
  if (!begin_call(call, shared, deadline)) return;
  const BetweenDeadlines deadlines(call.wait_context);
  const uint64_t epoch = shared.epoch;
  const BetweenWork work{.params = params,
                         .call = call,
                         .deadlines = deadlines,
                         .epoch = epoch,
                         .digest = digest_of(call, epoch),
                         .parity = parity_of(epoch)};
  if (warp::index() + 1 < warp::count()) return move_between<Steps>(work, shared);
  if (block::index() == 0) {
    if (warp::elect()) store_on_host(work, call.rank, work.word());
    if (pass_greetings_on(work, [](const LinkEnd&) {})) await_all_words(work, deadline);
  }
  pass_epoch(call, epoch);
}

}  // namespace tokenyard::device_collectives
