/// Tells watching ranks of this host which sources have all of their rows in place. See
/// throughput/kernels/readiness.hpp for what a caller's kernels see.
///
///     movers of the rank that stores a source's rows: slots, or own tokens, that are in place
///     the last one of them          -- load/store --> delivered[source] of each watching rank
///     receiver of a watching rank:  delivered         -> sources_ready, experts_ready
///
/// Costs a mover a wait for its stores now and then, and nothing where no rank of the host watches.
#pragma once

#include "expert_parallel/internode/kernels/move_slots_kernel.hpp"

namespace tokenyard::internode {

/// Slots and tokens that a mover has stored and not published yet. All lanes call these, alike.
class Deliveries {
 public:
  TOKENYARD_DEVICE Deliveries(const Dispatch& dispatch, const Destination& mine)
      : dispatch_(dispatch), watching_(warp::ballot(mine.watches)) {}

  TOKENYARD_DEVICE bool watched() const { return watching_ != 0; }

  /// Tells of the sources of which nothing comes. Called by one mover of the rank.
  TOKENYARD_DEVICE void publish_empty() const {
    if (!watched()) return;
    const RailCall& call = dispatch_.call;
    const uint32_t link = warp::lane();
    if (link < call.links() && call.rails.links[link].sends &&
        dispatch_.params.route.slots_in(link) == 0)
      publish(call.rails.links[link].rank);
    if (warp::lane() == 0 && dispatch_.input().tokens == 0) publish(call.params.rank);
  }
  TOKENYARD_DEVICE void note_slot(uint32_t link) {
    if (warp::lane() == link) ++slots_;
    ++noted_;
  }
  TOKENYARD_DEVICE void note_token() {
    ++tokens_;
    ++noted_;
  }
  /// Tells what was noted, if it is much.
  TOKENYARD_DEVICE void publish_now_and_then(const Mover& mover) {
    if (noted_ >= kNotedMax) publish_all(mover);
  }
  /// Tells what was noted: waits until its copies are complete.
  TOKENYARD_DEVICE void publish_all(const Mover& mover) {
    if (!watched() || noted_ == 0) return;
    mover.complete();
    // Passes the copies and stores of all lanes on to those that count them.
    warp::sync();
    const RailCall& call = dispatch_.call;
    const uint32_t link = warp::lane();
    // acq_rel: whoever counts last inherits what the others have stored.
    if (slots_ != 0 &&
        fetch_add<Order::acq_rel, Scope::gpu>(&call.rails.tables.counts(link).delivered, slots_) +
                slots_ ==
            dispatch_.params.route.slots_in(link))
      publish(call.rails.links[link].rank);
    if (warp::lane() == 0 && tokens_ != 0 &&
        fetch_add<Order::acq_rel, Scope::gpu>(&call.workspace().delivered, tokens_) + tokens_ ==
            dispatch_.input().tokens)
      publish(call.params.rank);
    slots_ = tokens_ = noted_ = 0;
  }

 private:
  static constexpr uint32_t kNotedMax = 8;

  /// Called by one lane. Release: orders the rows of the source before the word.
  TOKENYARD_DEVICE void publish(uint32_t source) const {
    const Rails& rails = dispatch_.call.rails;
    for (uint32_t left = watching_; left != 0; left &= left - 1)
      store<Order::release, Scope::sys>(
          rails.word<uint32_t>(rails.hosts.local(first_bit(left)), rails.layout.delivered(source)),
          dispatch_.call.epoch());
  }

  const Dispatch& dispatch_;
  const uint32_t watching_;  // Ranks of this host, by place.
  uint32_t slots_ = 0;       // Of this lane's link.
  uint32_t tokens_ = 0;      // Of this rank.
  uint32_t noted_ = 0;       // Of both.
};

/// Waits for the rows of all sources, and tells this rank's watching kernels of each source whose
/// rows are in place, and of each expert. Called by one warp of the rank; the call's counts, if it
/// has any, are in its window. Returns false if the call has failed.
TOKENYARD_DEVICE bool publish_arrivals(const Dispatch& dispatch) {
  const throughput::Readiness& readiness = dispatch.input().readiness;
  if (readiness.words == nullptr) return true;
  const RailCall& call = dispatch.call;
  const WindowLayout& layout = call.rails.layout;
  const uint32_t ranks = call.params.ranks;
  // Sources of this lane, one of 32 each.
  uint64_t awaited = 0;
  for (uint32_t i = 0; i * kWarpLanes + warp::lane() < ranks; ++i) {
    const uint32_t source = i * kWarpLanes + warp::lane();
    if (!call.params.absent.contains(source)) awaited |= uint64_t{1} << i;
    // No row comes from an absent rank. Relaxed: the word releases no rows.
    else
      store<Order::relaxed, Scope::gpu>(&readiness.source(source), 1);
  }
  const auto names = [&](uint32_t source, uint32_t expert) {
    // Relaxed: the receiver has acquired the counts.
    return !dispatch.params.counts() ||
           load<Order::relaxed, Scope::sys>(
               call.rails.word<Stamped>(call.params.rank, layout.expert(source, expert)))
                   .value != 0;
  };
  const auto publish_experts = [&] {
    for (uint32_t expert = warp::lane(); expert < readiness.local_experts; expert += kWarpLanes) {
      // Relaxed: this warp alone writes these words, and has acquired what they stand for.
      if (load<Order::relaxed, Scope::gpu>(&readiness.expert(expert)) != 0) continue;
      bool come = true;
      for (uint32_t source = 0; source < ranks && come; ++source)
        if (load<Order::relaxed, Scope::gpu>(&readiness.source(source)) == 0)
          come = !names(source, expert);
      // Release: orders the rows of all its sources before the word.
      if (come) store<Order::release, Scope::gpu>(&readiness.expert(expert), 1);
    }
  };
  warp::sync();
  publish_experts();
  Awaited what{.phase = static_cast<uint32_t>(Phase::delivered), .expected = call.epoch()};
  uint32_t polls = 0;
  return wait_until(
      what,
      [&] {
        bool come = false;
        uint32_t i = 0;
        for (uint64_t left = awaited; left != 0; left >>= 1, ++i) {
          if ((left & 1) == 0) continue;
          const uint32_t source = i * kWarpLanes + warp::lane();
          // Acquires the source's rows.
          const uint32_t seen = load<Order::acquire, Scope::sys>(
              call.rails.word<uint32_t>(call.params.rank, layout.delivered(source)));
          if (seen == call.epoch()) {
            // Release: orders them before the word.
            store<Order::release, Scope::gpu>(&readiness.source(source), 1);
            awaited &= ~(uint64_t{1} << i);
            come = true;
          } else {
            what.rank = source;
            what.seen = seen;
            // The rail peer here stores the rows of a rank of another host.
            what.from_rank = call.rails.hosts.host_of[source] == call.rails.hosts.host;
          }
        }
        if (warp::any(come)) {
          // Passes on what each lane has acquired.
          warp::sync();
          publish_experts();
        }
        return warp::all(awaited == 0);
      },
      [&] {
        return !warp::any(awaited == 0 ? call.host_deadline.failed()
                                       : call.host_deadline.give_up(++polls, what));
      });
}

}  // namespace tokenyard::internode
