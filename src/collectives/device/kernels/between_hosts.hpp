/// Collectives among ranks of several hosts: parameters, tables and the layout of windows.
///
/// Ranks of one host store into one another's windows; a rank exchanges chunks with its rail peers,
/// the ranks with the same place on other hosts (`place mod ranks of that host` where a host has
/// fewer), through a ring in each direction of their link.
///
///     movements    source == chunk per host ==> its rail peer -- load/store -> destination
///     reductions   ranks of a host -- load/store -> one of them, which adds their chunks in the
///                  order of ranks == partial sum ==> destination, its rail peer, which adds the
///                  partial sums in the order of hosts
///
/// Bytes of a message travel in chunks, dealt out among channels. A channel belongs to one block of
/// each rank and has its own queue, rings and places. A block works off a channel in turns: in each
/// turn it does step one of a chunk, step two of an earlier one and step three of a still earlier
/// one. Every wait of a turn is for a step of an earlier turn, or an earlier step of this one, so
/// no call blocks itself, for any number of blocks.
///
/// Every rank greets its rail peers with its call word, which they pass on to the ranks of their
/// host. So all ranks compare the words of all, as inside a host (device_call_kernel.hpp). A rank
/// reads no chunk of a peer before it has seen that the peer makes the same call. Few bytes travel
/// with the greeting, one put and one signal, if they need no other rank of the host first.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collectives/device/kernels/device_call.hpp"
#include "device/kernel.hpp"
#include "device/network_ring.hpp"

namespace tokenyard::device_collectives {

inline constexpr uint32_t kBetweenThreadsMax = 512;
inline constexpr uint32_t kChannelsMax = 4;
inline constexpr uint32_t kLinkRounds = 4;  ///< chunks of a message that a ring holds
inline constexpr uint32_t kHostRounds = 2;  ///< the same of the places of a host's window
inline constexpr uint32_t kNoLink = UINT32_MAX;
/// Chunks are smaller than slots where that fills the channels' rings, but not much smaller: each
/// takes a turn.
inline constexpr uint64_t kLinkChunkLeast = 16 << 10;

/// Returns the bytes of the chunks of messages, the longest of which has so many bytes.
TOKENYARD_HOST_DEVICE uint32_t link_chunk_bytes(uint64_t bytes, uint32_t channels, uint32_t most) {
  const uint64_t share = bytes / (uint64_t{channels} * kLinkRounds) / 64 * 64;
  const uint64_t least = most < kLinkChunkLeast ? most : kLinkChunkLeast;
  return static_cast<uint32_t>(std::min<uint64_t>(std::max(share, least), most));
}

/// Which ranks share a host. Tables in device memory.
struct HostTable {
  const uint32_t* host_of;       ///< [ranks]
  const uint32_t* place_of;      ///< [ranks] place of each rank on its host
  const uint32_t* first;         ///< [hosts + 1] in `members`
  const uint32_t* members;       ///< [ranks] ranks, host after host, ascending in each
  const uint32_t* first_served;  ///< [locals + 1] in `served`
  const uint32_t* served;        ///< [ranks] for each place, the ranks whose partial sums it makes
  const uint32_t* link_to;       ///< [ranks] number of this rank's link, or kNoLink
  uint32_t hosts, host, place;   ///< of this rank
  uint32_t locals;               ///< ranks of this host
  uint32_t served_max;           ///< most ranks that any rank serves

  TOKENYARD_HOST_DEVICE uint32_t size_of(uint32_t of_host) const {
    return first[of_host + 1] - first[of_host];
  }
  TOKENYARD_HOST_DEVICE uint32_t member(uint32_t of_host, uint32_t at) const {
    return members[first[of_host] + at];
  }
  TOKENYARD_HOST_DEVICE uint32_t local(uint32_t at) const { return member(host, at); }
  TOKENYARD_HOST_DEVICE bool is_here(uint32_t rank) const { return host_of[rank] == host; }
  /// The ranks whose chunks the rank at a place passes on, and whose partial sums it makes.
  TOKENYARD_HOST_DEVICE uint32_t count_served(uint32_t at) const {
    return first_served[at + 1] - first_served[at];
  }
  TOKENYARD_HOST_DEVICE uint32_t served_by(uint32_t at, uint32_t number) const {
    return served[first_served[at] + number];
  }
  /// Returns the rank of a host that forwards what `rank` sends there, and makes that host's
  /// partial sums for it.
  TOKENYARD_HOST_DEVICE uint32_t peer_on(uint32_t of_host, uint32_t rank) const {
    return member(of_host, place_of[rank] % size_of(of_host));
  }
};

/// This rank's end of a link. In device memory, written once.
struct HostLink {
  uint32_t rank;         ///< the peer
  uint32_t slot;         ///< the peer's, by which queues and reports know it
  uint32_t there;        ///< the same link's number on the peer
  NetworkTarget window;  ///< the peer's LinkWindow
};

/// The counts of an end of a link in a channel, which outlive calls.
struct alignas(64) LinkCounts {
  uint64_t sent, taken;           ///< see network_ring.hpp
  uint32_t numbers[kLinkRounds];  ///< by round: the last request that reads the stage
};

/// The part of a rank's window into which ranks of its host store.
///
///     filled[parity][channel][place]     rounds whose chunks the rank at that place has stored
///     consumed[parity][channel][place]   rounds whose chunks that rank has read from its window
///     chunk[parity][channel][round][place][number]      of the rank at that place
struct HostWindow {
  uint32_t channels, locals_max, chunks, chunk_bytes;

  TOKENYARD_HOST_DEVICE size_t filled(uint32_t parity, uint32_t channel, uint32_t place) const {
    return ((size_t{parity} * channels + channel) * locals_max + place) * 16;
  }
  TOKENYARD_HOST_DEVICE size_t consumed(uint32_t parity, uint32_t channel, uint32_t place) const {
    return filled(2, 0, 0) + filled(parity, channel, place);
  }
  TOKENYARD_HOST_DEVICE size_t words_bytes() const { return consumed(2, 0, 0); }
  TOKENYARD_HOST_DEVICE size_t chunk(uint32_t parity, uint32_t channel, uint64_t round,
                                     uint32_t index) const {
    const size_t before = (size_t{parity} * channels + channel) * kHostRounds + round % kHostRounds;
    return words_bytes() + (before * chunks + index) * chunk_bytes;
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const { return chunk(2, 0, 0, 0); }
};

/// The part of a rank's window that the network reaches. Greetings are double, by the epoch's
/// parity, and hold a call word and few bytes of data.
struct LinkWindow {
  uint32_t links_max, channels, greeting_bytes, capacity, slot_bytes;

  // uint64_t words that only signals of the link's other end write.
  TOKENYARD_HOST_DEVICE size_t greeted(uint32_t link) const { return word(link, 0); }
  TOKENYARD_HOST_DEVICE size_t arrived(uint32_t link, uint32_t channel) const {
    return word(link, 1 + channel);
  }
  TOKENYARD_HOST_DEVICE size_t credited(uint32_t link, uint32_t channel) const {
    return word(link, 1 + channels + channel);
  }
  TOKENYARD_HOST_DEVICE size_t greeting_in(uint32_t link, uint32_t parity) const {
    return greetings_at() + (size_t{link} * 3 + parity) * (sizeof(CallWord) + greeting_bytes);
  }
  TOKENYARD_HOST_DEVICE size_t greeting_out(uint32_t link) const { return greeting_in(link, 2); }
  /// Returns the bytes of words and greetings, which start as zero.
  TOKENYARD_HOST_DEVICE size_t words_bytes() const { return greeting_in(links_max, 0); }
  TOKENYARD_HOST_DEVICE size_t ring(uint32_t link, uint32_t channel) const {
    return (words_bytes() + 127) / 128 * 128 +
           (size_t{link} * channels + channel) * 2 * capacity * slot_bytes;
  }
  TOKENYARD_HOST_DEVICE size_t stage(uint32_t link, uint32_t channel) const {
    return ring(link, channel) + size_t{capacity} * slot_bytes;
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const { return ring(links_max, 0); }

 private:
  TOKENYARD_HOST_DEVICE size_t word(uint32_t link, uint32_t number) const {
    return (size_t{link} * (1 + 2 * channels) + number) * sizeof(uint64_t);
  }
  TOKENYARD_HOST_DEVICE size_t greetings_at() const {
    return (word(links_max, 0) + 127) / 128 * 128;
  }
};

struct BetweenHostsParams {
  CallParams call;
  HostTable hosts;
  HostWindow near;
  Peers near_windows;  ///< of the ranks of this host; others have no address
  LinkWindow far;
  std::byte* far_window;  ///< this rank's
  MemoryKey key;          ///< of that
  const HostLink* links;  ///< [link_count]
  uint32_t link_count;
  LinkCounts* counts;  ///< [channels][link_count]
  NetworkQueues queues;
  uint32_t queue_of[kChannelsMax];  ///< by channel, at every peer
  std::byte* own_partials;          ///< [channels][kLinkRounds][slot_bytes] this rank's own
  uint64_t first_epoch;             ///< after which calls are counted
  uint32_t chunk_bytes;             ///< of a message
  uint32_t wider;                   ///< bytes of a partial sum per byte of the result
  bool with_greeting;               ///< the whole message travels with the greeting
  bool raw;                         ///< every host has one rank, whose input is its partial sum
};

/// Calls that reduce nothing.
TOKENYARD_DECLARE_KERNEL(move_between_hosts_kernel, BetweenHostsParams);
/// Reductions of the types of a group (arithmetic.hpp), or of one type.
TOKENYARD_DECLARE_KERNEL(reduce_floats_between_hosts_kernel, BetweenHostsParams);
TOKENYARD_DECLARE_KERNEL(reduce_halves_between_hosts_kernel, BetweenHostsParams);
TOKENYARD_DECLARE_KERNEL(reduce_float8s_between_hosts_kernel, BetweenHostsParams);
TOKENYARD_DECLARE_KERNEL(reduce_bytes_between_hosts_kernel, BetweenHostsParams);
TOKENYARD_DECLARE_KERNEL(reduce_integers16_between_hosts_kernel, BetweenHostsParams);
TOKENYARD_DECLARE_KERNEL(reduce_uint32_between_hosts_kernel, BetweenHostsParams);
TOKENYARD_DECLARE_KERNEL(reduce_int32_between_hosts_kernel, BetweenHostsParams);
TOKENYARD_DECLARE_KERNEL(reduce_uint64_between_hosts_kernel, BetweenHostsParams);
TOKENYARD_DECLARE_KERNEL(reduce_int64_between_hosts_kernel, BetweenHostsParams);

}  // namespace tokenyard::device_collectives
