/// The steps of operations that reduce nothing: a rank sends its chunks to its rail peers, these
/// store them in the windows of the destinations, which copy them to their results.
#pragma once

#include "collectives/device/kernels/host_steps_kernel.hpp"

namespace tokenyard::device_collectives {

/// The parts of messages whose sizes all ranks know.
struct KnownParts {
  const BetweenWork& work;

  TOKENYARD_DEVICE uint64_t rounds(uint32_t channel) const { return work.rounds(channel); }
  TOKENYARD_DEVICE HostChunk chunk(uint32_t channel, uint64_t round) const {
    return work.chunk(channel, round);
  }
  TOKENYARD_DEVICE uint32_t bytes_of(const HostChunk& chunk, uint32_t source,
                                     uint32_t destination) const {
    return work.bytes_of(chunk, source, destination);
  }
  TOKENYARD_DEVICE uint64_t input_at(uint32_t destination) const {
    return work.call.movement.input_at(destination);
  }
  TOKENYARD_DEVICE uint64_t result_at(uint32_t source) const {
    return work.call.movement.result_at(source);
  }
};

/// `Sizes`: the sizes and places of messages, as KnownParts has them.
template <class Sizes>
class HostMovements {
 public:
  TOKENYARD_DEVICE HostMovements(const BetweenWork& work, Movers& movers, uint32_t channel)
      : HostMovements(work, movers, channel, Sizes{work}) {}
  TOKENYARD_DEVICE HostMovements(const BetweenWork& work, Movers& movers, uint32_t channel,
                                 const Sizes& parts)
      : work_(work),
        call_(work.call),
        hosts_(work.hosts()),
        movers_(movers),
        channel_(channel),
        sizes_(parts) {}

  TOKENYARD_DEVICE uint64_t rounds() const { return sizes_.rounds(channel_); }
  TOKENYARD_DEVICE static uint32_t second_lag() { return kLinkRounds - 1; }
  TOKENYARD_DEVICE uint32_t third_lag() const {
    return second_lag() + (work_.params.near.locals_max > 1 ? 1 : 0);
  }

  /// Sends this rank's chunks to its rail peers.
  TOKENYARD_DEVICE bool first(uint64_t round) {
    const HostChunk chunk = sizes_.chunk(channel_, round);
    const bool free = for_links(work_, [&](uint32_t link) {
      const uint32_t chunks = outgoing(link);
      return chunks == 0 || end_of(link).reserve(round, chunks);
    });
    if (!movers_.meet(free)) return false;
    for (uint32_t link = 0; link < work_.params.link_count; ++link) {
      const uint32_t chunks = outgoing(link);
      if (end_of(link).is_inline(chunks)) continue;
      for (uint32_t i = 0; i < chunks; ++i) {
        const uint32_t to = destination(link, i);
        movers_.copy(call_.input + sizes_.input_at(to) + chunk.begin, end_of(link).stage(i),
                     sizes_.bytes_of(chunk, call_.rank, to));
      }
    }
    if (!movers_.meet(true)) return false;
    for_links(work_, [&](uint32_t link) {
      const uint32_t chunks = outgoing(link);
      if (chunks == 0 && !work_.params.with_greeting) return true;
      const std::byte* const only =
          chunks == 0 ? nullptr : call_.input + sizes_.input_at(destination(link, 0)) + chunk.begin;
      return end_of(link).publish(round, chunks, only, [&](uint32_t i) {
        return sizes_.bytes_of(chunk, call_.rank, destination(link, i));
      });
    });
    return true;
  }

  /// Passes arrived chunks, and this rank's own, on to the ranks of this host.
  TOKENYARD_DEVICE bool second(uint64_t round) {
    const HostChunk chunk = sizes_.chunk(channel_, round);
    const bool come = for_links(work_, [&](uint32_t link) {
      const uint32_t chunks = incoming(link);
      return chunks == 0 || end_of(link).await(round, chunks);
    });
    const bool free = await_read(work_, channel_, round);
    if (!movers_.meet(come && free)) return false;
    for (uint32_t place = 0; place < hosts_.locals; ++place) {
      const uint32_t to = hosts_.local(place);
      for (uint32_t i = 0; i < hosts_.count_served(hosts_.place); ++i) {
        const uint32_t from = hosts_.served_by(hosts_.place, i);
        if (!call_.movement.sends(from, to)) continue;
        if (from == call_.rank)
          pass_on(call_.input + sizes_.input_at(to) + chunk.begin, chunk, i, from, place);
        else
          pass_on(end_of(hosts_.link_to[from]).chunk(call_.movement.input_has_parts ? place : 0),
                  chunk, i, from, place);
      }
    }
    if (!movers_.meet(true)) return false;
    for_links(work_, [&](uint32_t link) {
      const uint32_t chunks = incoming(link);
      return chunks == 0 || end_of(link).release(chunks);
    });
    publish_stored(work_, channel_, round);
    return true;
  }

  /// Copies chunks that ranks of this host have stored here to the result.
  TOKENYARD_DEVICE bool third(uint64_t round) {
    if (hosts_.locals == 1) return true;
    const HostChunk chunk = sizes_.chunk(channel_, round);
    if (!movers_.meet(await_stored(work_, channel_, round))) return false;
    for (uint32_t place = 0; place < hosts_.locals; ++place) {
      if (place == hosts_.place) continue;
      for (uint32_t i = 0; i < hosts_.count_served(place); ++i) {
        const uint32_t from = hosts_.served_by(place, i);
        if (call_.movement.sends(from, call_.rank))
          movers_.copy(Peer<const std::byte>(
                           work_.near_chunk(call_.rank, channel_, round, place, i).address()),
                       result_of(chunk, from), sizes_.bytes_of(chunk, from, call_.rank));
      }
    }
    if (!movers_.meet(true)) return false;
    publish_read(work_, channel_, round);
    return true;
  }

  TOKENYARD_DEVICE bool end() {
    return for_links(work_, [&](uint32_t link) {
      const uint32_t chunks = outgoing(link);
      return chunks == 0 || end_of(link).flush(chunks);
    });
  }

 private:
  TOKENYARD_DEVICE LinkEnd end_of(uint32_t link) const { return {work_, channel_, link}; }

  /// Chunks of a round that a rank sends to each host but its own.
  TOKENYARD_DEVICE uint32_t chunks_to(uint32_t source, uint32_t host) const {
    const Movement& movement = call_.movement;
    if (!movement.has_input(source)) return 0;
    if (movement.only_to_root && hosts_.host_of[movement.root] != host) return 0;
    return movement.input_has_parts ? hosts_.size_of(host) : 1;
  }
  TOKENYARD_DEVICE uint32_t outgoing(uint32_t link) const {
    const uint32_t peer = work_.params.links[link].rank, host = hosts_.host_of[peer];
    return hosts_.peer_on(host, call_.rank) == peer ? chunks_to(call_.rank, host) : 0;
  }
  TOKENYARD_DEVICE uint32_t incoming(uint32_t link) const {
    const uint32_t peer = work_.params.links[link].rank;
    return hosts_.peer_on(hosts_.host, peer) == call_.rank ? chunks_to(peer, hosts_.host) : 0;
  }
  /// Returns the rank that an outgoing chunk is for; one of several, if they get the same.
  TOKENYARD_DEVICE uint32_t destination(uint32_t link, uint32_t chunk) const {
    return hosts_.member(hosts_.host_of[work_.params.links[link].rank], chunk);
  }
  TOKENYARD_DEVICE std::byte* result_of(const HostChunk& chunk, uint32_t source) const {
    return call_.result + sizes_.result_at(source) + chunk.begin;
  }
  /// `number`: of the source among those whose chunks this rank passes on.
  template <class From>
  TOKENYARD_DEVICE void pass_on(From from, const HostChunk& chunk, uint32_t number, uint32_t source,
                                uint32_t place) {
    const uint32_t to = hosts_.local(place), bytes = sizes_.bytes_of(chunk, source, to);
    if (to != call_.rank)
      return movers_.copy(from, work_.near_chunk(to, channel_, chunk.round, hosts_.place, number),
                          bytes);
    std::byte* const result = result_of(chunk, source);
    if (is_at(from, result)) return;
    movers_.copy(from, result, bytes);
  }
  TOKENYARD_DEVICE static bool is_at(const std::byte* from, const std::byte* to) {
    return from == to;
  }
  TOKENYARD_DEVICE static bool is_at(Peer<const std::byte>, const std::byte*) { return false; }

  const BetweenWork& work_;
  const CallParams& call_;
  const HostTable& hosts_;
  Movers& movers_;
  const uint32_t channel_;
  const Sizes sizes_;
};

}  // namespace tokenyard::device_collectives
