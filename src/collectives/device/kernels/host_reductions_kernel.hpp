/// The steps of reductions: ranks of a host store their chunks with the one of them that adds them,
/// which sends the partial sum to its destination, which adds those of all hosts.
#pragma once

#include "collectives/device/kernels/host_fold_kernel.hpp"
#include "collectives/device/kernels/host_steps_kernel.hpp"

namespace tokenyard::device_collectives {

/// `Types`: an ElementTypes; calls have one of them.
template <class Types>
class HostReductions {
 public:
  TOKENYARD_DEVICE HostReductions(const BetweenWork& work, Movers& movers, uint32_t channel)
      : work_(work), call_(work.call), hosts_(work.hosts()), movers_(movers), channel_(channel) {}

  TOKENYARD_DEVICE uint64_t rounds() const { return work_.rounds(channel_); }
  TOKENYARD_DEVICE uint32_t second_lag() const { return work_.params.near.locals_max > 1 ? 1 : 0; }
  TOKENYARD_DEVICE uint32_t third_lag() const { return second_lag() + kLinkRounds - 1; }

  /// Stores this rank's chunks with the ranks of this host that add them.
  TOKENYARD_DEVICE bool first(uint64_t round) {
    if (hosts_.locals == 1) return true;
    const HostChunk chunk = work_.chunk(channel_, round);
    if (!movers_.meet(await_read(work_, channel_, round))) return false;
    for (uint32_t place = 0; place < hosts_.locals; ++place) {
      if (place == hosts_.place) continue;
      for_sums_of(place, [&](uint32_t number, uint32_t destination) {
        movers_.copy(input_for(chunk, destination),
                     work_.near_chunk(hosts_.local(place), channel_, round, hosts_.place, number),
                     bytes_for(chunk, destination));
      });
    }
    if (!movers_.meet(true)) return false;
    publish_stored(work_, channel_, round);
    return true;
  }

  /// Adds the chunks of this host's ranks, and sends the partial sums.
  TOKENYARD_DEVICE bool second(uint64_t round) {
    const HostChunk chunk = work_.chunk(channel_, round);
    const bool free = for_links(
        work_, [&](uint32_t link) { return !sends_on(link) || end_of(link).reserve(round, 1); });
    const bool stored = await_stored(work_, channel_, round);
    if (!movers_.meet(free && stored)) return false;
    uint32_t number = 0;
    for (uint32_t i = 0; i < hosts_.count_served(hosts_.place); ++i) {
      const uint32_t destination = hosts_.served_by(hosts_.place, i);
      if (!call_.movement.sends(call_.rank, destination)) continue;
      if (destination == call_.rank) {
        if (!work_.params.raw)
          add_partial(chunk, destination, number, Peer<std::byte>(own_partial(round)));
      } else if (!end_of(hosts_.link_to[destination]).is_inline(1)) {
        add_partial(chunk, destination, number, end_of(hosts_.link_to[destination]).stage(0));
      }
      if (call_.movement.input_has_parts) ++number;
    }
    if (!movers_.meet(true)) return false;
    for_links(work_, [&](uint32_t link) {
      const bool sends = sends_on(link);
      if (!sends && !work_.params.with_greeting) return true;
      const std::byte* const only = input_for(chunk, work_.params.links[link].rank);
      return end_of(link).publish(round, sends ? 1 : 0, only, [&](uint32_t) {
        return bytes_for(chunk, work_.params.links[link].rank) * work_.params.wider;
      });
    });
    if (hosts_.locals > 1) publish_read(work_, channel_, round);
    return true;
  }

  /// Adds the partial sums of all hosts.
  TOKENYARD_DEVICE bool third(uint64_t round) {
    if (!call_.movement.has_result(call_.rank)) return true;
    const HostChunk chunk = work_.chunk(channel_, round);
    const bool come = for_links(
        work_, [&](uint32_t link) { return !receives_on(link) || end_of(link).await(round, 1); });
    if (!movers_.meet(come)) return false;
    add_hosts(chunk);
    if (!movers_.meet(true)) return false;
    for_links(work_, [&](uint32_t link) { return !receives_on(link) || end_of(link).release(1); });
    return true;
  }

  TOKENYARD_DEVICE bool end() {
    return for_links(work_,
                     [&](uint32_t link) { return !sends_on(link) || end_of(link).flush(1); });
  }

 private:
  TOKENYARD_DEVICE LinkEnd end_of(uint32_t link) const { return {work_, channel_, link}; }
  TOKENYARD_DEVICE bool sends_on(uint32_t link) const {
    const uint32_t peer = work_.params.links[link].rank;
    return hosts_.peer_on(hosts_.host, peer) == call_.rank &&
           call_.movement.sends(call_.rank, peer);
  }
  /// Called only by a rank with a result.
  TOKENYARD_DEVICE bool receives_on(uint32_t link) const {
    const uint32_t peer = work_.params.links[link].rank;
    return hosts_.peer_on(hosts_.host_of[peer], call_.rank) == peer;
  }
  TOKENYARD_DEVICE uint32_t link_from(uint32_t host) const {
    return hosts_.link_to[hosts_.peer_on(host, call_.rank)];
  }
  /// Calls `body(number, destination)` for each different sum that the rank at a place makes.
  template <class Body>
  TOKENYARD_DEVICE void for_sums_of(uint32_t place, Body body) const {
    uint32_t number = 0;
    for (uint32_t i = 0; i < hosts_.count_served(place); ++i) {
      const uint32_t destination = hosts_.served_by(place, i);
      if (!call_.movement.sends(call_.rank, destination)) continue;
      body(number++, destination);
      if (!call_.movement.input_has_parts) return;
    }
  }
  TOKENYARD_DEVICE const std::byte* input_for(const HostChunk& chunk, uint32_t destination) const {
    return call_.input + call_.movement.input_at(destination) + chunk.begin;
  }
  TOKENYARD_DEVICE uint32_t bytes_for(const HostChunk& chunk, uint32_t destination) const {
    return work_.bytes_of(chunk, call_.rank, destination);
  }
  TOKENYARD_DEVICE std::byte* own_partial(uint64_t round) const {
    return work_.params.own_partials +
           (channel_ * kLinkRounds + round % kLinkRounds) * size_t{work_.params.far.slot_bytes};
  }

  /// Adds this host's chunks of a sum. `number`: of the sum among this rank's.
  TOKENYARD_DEVICE void add_partial(const HostChunk& chunk, uint32_t destination, uint32_t number,
                                    Peer<std::byte> to) {
    const std::byte* const own = input_for(chunk, destination);
    const uint32_t bytes = bytes_for(chunk, destination);
    if (work_.params.raw) return movers_.copy(own, to, bytes);
    const HostFold by{.op = call_.op,
                      .sources = hosts_.locals,
                      .first_scale = call_.factor,
                      .factor = call_.factor};
    const auto source = [&](uint32_t place) {
      return Peer<const std::byte>(
          place == hosts_.place
              ? own
              : work_.near_chunk(call_.rank, channel_, chunk.round, place, number).address());
    };
    with_element(call_.type, [&](auto element) {
      using T = decltype(element);
      if constexpr (Types::template kHas<T>)
        fold<T, T, PartialOf<T>>(by, bytes, spans::are_aligned(own), source, to);
    });
  }

  TOKENYARD_DEVICE void add_hosts(const HostChunk& chunk) {
    const bool raw = work_.params.raw;
    const std::byte* const own = raw ? input_for(chunk, call_.rank) : own_partial(chunk.round);
    std::byte* const result = call_.result + call_.movement.begin + chunk.begin;
    const double scale = raw ? call_.factor : 1;
    const HostFold by{.op = call_.op,
                      .sources = hosts_.hosts,
                      .first_scale = scale,
                      .later_scale = scale,
                      .divisor = call_.ranks};
    const auto source = [&](uint32_t host) {
      return Peer<const std::byte>(
          host == hosts_.host ? own : end_of(link_from(host)).chunk(0).address());
    };
    const uint32_t bytes = bytes_for(chunk, call_.rank);
    const bool aligned = spans::are_aligned(own, result);
    with_element(call_.type, [&](auto element) {
      using T = decltype(element);
      if constexpr (Types::template kHas<T>) {
        if constexpr (!std::same_as<PartialOf<T>, T>)
          if (!raw) return fold<T, PartialOf<T>, T>(by, bytes, aligned, source, result);
        fold<T, T, T>(by, bytes, aligned, source, result);
      }
    });
  }

  /// Folds `bytes` of T, which the movers share.
  template <class T, class In, class Out, class Sources, class To>
  TOKENYARD_DEVICE void fold(const HostFold& by, uint32_t bytes, bool aligned,
                             const Sources& sources, To to) {
    movers_.share(bytes, [&](uint32_t at, uint32_t count) {
      fold_hosts<T, In, Out>(
          by, count, aligned,
          [&](uint32_t i) { return sources(i) + spans::distance(at * (sizeof(In) / sizeof(T))); },
          to + spans::distance(at * (sizeof(Out) / sizeof(T))));
    });
  }

  const BetweenWork& work_;
  const CallParams& call_;
  const HostTable& hosts_;
  Movers& movers_;
  const uint32_t channel_;
};

}  // namespace tokenyard::device_collectives
