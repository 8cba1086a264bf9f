/// An exchange between hosts: its ranks, rails, links and words. Dispatch and combine share them.
///
///     source (host A)                 forwarder (host B)              destination (host B)
///     one copy per host  == rows ==>  its ring       -- load/store -> final row        dispatch
///     adds the partials  <= sums ===  one partial    <- load/store -- result row       combine
///
/// A token goes once to each host that wants it, to the source's rail peer there: the rank with the
/// same place on its host, `place mod ranks of that host` if that host has fewer. Two ranks, of
/// which one forwards for the other or both for each other, share a link. A link has a ring in each
/// direction, and each end has two queues: one for what fills the peer's ring, one for what empties
/// its own. Exactly one thread uses a queue in a call.
///
/// Five roles, each a function with warps of its own in every block:
///
///     send                 dispatch: builds a slot per token and stores it to the stage of each
///                          host; combine has add_token: adds a token's partials
///     coordinate_sends     puts written slots into the peer's ring, within its credits
///     forward              dispatch: hands each arrived slot to the ranks of its host; combine:
///                          sums their results for a source, one partial per token
///     coordinate_forwards  gives read slots back as credits
///     receive              learns what every rank does, and awaits that this host has finished
///
/// Invariants:
///   1. Every slot of a ring has a place in its source's token order. Slots are filled, put, read
///      and credited in that order, so nobody waits for a slot that cannot come.
///   2. Between calls nothing is under way: a call ends once its credits cover all that it sent.
///      So the next call may cut the rings into slots of another size.
///   3. A rank stores into another one's result only after it knows the counts of all sources for
///      that rank, and only ranks of its own host do so.
///   4. Every rank awaits every rank's greeting, so no rank is a call ahead of another by two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/network_ring.hpp"
#include "device/peers.hpp"
#include "device/warp.hpp"
#include "expert_parallel/throughput/kernels/control.hpp"

namespace tokenyard::internode {

/// Which ranks share a host. Tables in device memory.
struct Hosts {
  const uint32_t* host_of;   ///< [ranks]
  const uint32_t* place_of;  ///< [ranks] place of each rank on its host
  const uint32_t* first;     ///< [hosts + 1] in `members`
  const uint32_t* members;   ///< [ranks] ranks, host after host, ascending in each
  uint32_t hosts, ranks;
  uint32_t host, place;  ///< of this rank
  uint32_t locals;       ///< ranks of this host

  TOKENYARD_HOST_DEVICE uint32_t size_of(uint32_t of_host) const {
    return first[of_host + 1] - first[of_host];
  }
  /// Returns the rank at a place of a host.
  TOKENYARD_HOST_DEVICE uint32_t member(uint32_t of_host, uint32_t at) const {
    return members[first[of_host] + at];
  }
  TOKENYARD_HOST_DEVICE uint32_t local(uint32_t at) const { return member(host, at); }
};

/// The words that greet every rank: the ready words of a call (control.hpp), then one more: from a
/// rank of another host, the slots that it sends to this host; from one of this host, whether it
/// watches rows arrive. Offsets count only among ranks of one host.
inline constexpr uint32_t kSourceWords = throughput::kReadyWords + 1;
inline constexpr uint32_t kSlotsComing = throughput::kReadyWords;
inline constexpr uint32_t kWatches = throughput::kReadyWords;
/// The value of every word about a source that has left before it greeted its rail peer here.
inline constexpr uint32_t kSourceLeft = 0xffffffff;
/// A refusal: token << 2 | RefusalKind, or 0, and the id.
inline constexpr uint32_t kRefusalWords = 3;

/// A source's message to its rail peer on one host. The peer passes its words on to the ranks of
/// its host, each with the epoch beside it.
struct GreetingLayout {
  uint32_t locals_max, experts_max;  ///< most ranks, and most experts, of any host

  TOKENYARD_HOST_DEVICE static uint32_t ready_word(uint32_t word) { return word; }
  TOKENYARD_HOST_DEVICE static uint32_t refusal(uint32_t word) { return kSourceWords + word; }
  TOKENYARD_HOST_DEVICE static uint32_t count(uint32_t place) {
    return kSourceWords + kRefusalWords + place;
  }
  TOKENYARD_HOST_DEVICE uint32_t expert(uint32_t number) const {
    return count(locals_max) + number;
  }
  TOKENYARD_HOST_DEVICE uint32_t words() const { return (expert(experts_max) + 3) / 4 * 4; }
};

/// A rank's window, in three parts with an address each. The ranks of its host store into the
/// first, which lies in the arena; the network puts and signals into the second, and reads from its
/// stages; the third holds the rings, into which it only puts. One layout for all ranks.
struct WindowLayout {
  uint32_t ranks, local_experts_max, links_max;
  GreetingLayout greeting;
  uint32_t ring_bytes;  ///< per ring, and per stage

  // The first part: words that ranks of the same host store, each with its epoch. All about one
  // source.
  TOKENYARD_HOST_DEVICE size_t ready_word(uint32_t source, uint32_t word) const {
    return (size_t{source} * words_per_source() + word) * sizeof(Stamped);
  }
  TOKENYARD_HOST_DEVICE size_t refusal(uint32_t source, uint32_t word) const {
    return ready_word(source, kSourceWords + word);
  }
  TOKENYARD_HOST_DEVICE size_t count(uint32_t source, uint32_t place) const {
    return ready_word(source, kSourceWords + kRefusalWords + place);
  }
  TOKENYARD_HOST_DEVICE size_t expert(uint32_t source, uint32_t local_expert) const {
    return count(source, greeting.locals_max) + local_expert * sizeof(Stamped);
  }
  /// uint32_t: epoch of the last call in which the rank at this place has finished its accesses.
  TOKENYARD_HOST_DEVICE size_t finished(uint32_t place) const {
    return ready_word(ranks, 0) + place * sizeof(uint64_t);
  }
  /// uint32_t: epoch of the last watched call in which all rows of this source are in place on this
  /// host. Stored by the rank of this host that has stored the last one.
  TOKENYARD_HOST_DEVICE size_t delivered(uint32_t source) const {
    return finished(greeting.locals_max) + source * sizeof(uint64_t);
  }
  TOKENYARD_HOST_DEVICE size_t near_bytes() const { return delivered(ranks); }

  // The second part. uint64_t words that only signals of the link's other end write.
  TOKENYARD_HOST_DEVICE size_t greeted(uint32_t link) const { return signal(link, 0); }
  TOKENYARD_HOST_DEVICE size_t arrived(uint32_t link) const { return signal(link, 1); }
  TOKENYARD_HOST_DEVICE size_t credited(uint32_t link) const { return signal(link, 2); }
  /// The verdicts of the peer's host on its places: see Full.
  TOKENYARD_HOST_DEVICE size_t judged(uint32_t link) const { return signal(link, 3); }
  /// The rows of the rank that the last verdict names, if it names one.
  TOKENYARD_HOST_DEVICE size_t excess(uint32_t link) const { return signal(link, 4); }
  /// The greeting of a call, by the parity of the calls' number: a source may be one call ahead.
  TOKENYARD_HOST_DEVICE size_t greeting_in(uint32_t link, uint32_t parity) const {
    return greetings_at() + (size_t{link} * 3 + parity) * greeting.words() * sizeof(uint32_t);
  }
  TOKENYARD_HOST_DEVICE size_t greeting_out(uint32_t link) const { return greeting_in(link, 2); }
  TOKENYARD_HOST_DEVICE size_t stage(uint32_t link) const {
    return stages_at() + size_t{link} * ring_bytes;
  }
  TOKENYARD_HOST_DEVICE size_t far_bytes() const { return stage(links_max); }

  // The third part.
  TOKENYARD_HOST_DEVICE size_t ring(uint32_t link) const { return size_t{link} * ring_bytes; }
  TOKENYARD_HOST_DEVICE size_t rings_bytes() const { return ring(links_max); }

 private:
  TOKENYARD_HOST_DEVICE uint32_t words_per_source() const {
    return kSourceWords + kRefusalWords + greeting.locals_max + local_experts_max;
  }
  TOKENYARD_HOST_DEVICE size_t signal(uint32_t link, uint32_t word) const {
    return (size_t{link} * kSignals + word) * sizeof(uint64_t);
  }
  static constexpr uint32_t kSignals = 5;
  TOKENYARD_HOST_DEVICE size_t greetings_at() const {
    return (signal(links_max, 0) + 127) / 128 * 128;
  }
  TOKENYARD_HOST_DEVICE size_t stages_at() const {
    return (greeting_in(links_max, 0) + 127) / 128 * 128;
  }
};

/// A rank that lacks places for its rows, as far as the ranks of a host know. A host's verdict
/// travels as a sum of signals: calls that were judged, and the rank in the bits above them.
struct Full {
  static constexpr uint32_t kNobody = 0xffffffff;
  uint32_t rank = kNobody;  ///< the first such rank
  uint32_t rows = 0;        ///< that would come to it

  static constexpr uint32_t kCallBits = 48;
  TOKENYARD_HOST_DEVICE uint64_t signal() const {
    return (rank == kNobody ? 0 : uint64_t{rank + 1} << kCallBits) + 1;
  }
  TOKENYARD_HOST_DEVICE static uint64_t calls_of(uint64_t judged) {
    return judged & ((uint64_t{1} << kCallBits) - 1);
  }
  TOKENYARD_HOST_DEVICE static uint32_t rank_of(uint64_t judged) {
    const auto rank = static_cast<uint32_t>(judged >> kCallBits);
    return rank == 0 ? kNobody : rank - 1;
  }
};

/// This rank's end of a link. In device memory, written once.
struct Link {
  uint32_t rank;         ///< the peer
  uint32_t host;         ///< of the peer
  bool forwards;         ///< the peer forwards this rank's rows on its host
  bool sends;            ///< this rank forwards the peer's rows on this host
  uint32_t there;        ///< the same link's number on the peer
  NetworkTarget window;  ///< the peer's second part
  NetworkTarget rings;   ///< and its third
};

/// The counts that an end of a link keeps between calls, in device memory. Positions count a ring's
/// slots since the exchange was made. Each word that many warps use at once has a line of its own:
/// a line answers one of them at a time.
struct LinkCounts {
  alignas(128) uint64_t first_out;  ///< position at which this call began; the call's end moves it
  uint64_t first_in;                ///< the same of the ring in
  uint64_t sent, taken;             ///< of the rings' owners (network_ring.hpp)
  alignas(128) uint64_t reusable;   ///< slots of the stage whose puts have read them
  alignas(128) uint64_t arrived;    ///< slots of the ring, as its coordinator passes it on
  alignas(128) uint64_t claimed;    ///< dispatch: slots that warps have claimed, or more
  uint32_t next_sum;   ///< combine: partial sums for the peer that are claimed, or more
  uint32_t delivered;  ///< watched dispatch: slots whose rows are in place
};

inline constexpr uint32_t kSlotsMax = 512;  ///< per ring

/// Words of a rank's own memory. Zero at first.
struct RailWorkspace {
  uint64_t calls;       ///< that have ended
  uint32_t next_token;  ///< next claim of a token: for hosts in dispatch, for sums in combine
  uint32_t next_near;   ///< dispatch: next claim of a token for ranks of this host
  uint32_t ended;       ///< parts of this call's accesses to the host's memory: see end_part
  uint32_t done;        ///< blocks of this call that have ended
  Stamped known;        ///< epoch of the last call whose counts are known; whether it is refused
  uint32_t near;       ///< combine: epoch of the last call whose ready words of this host are known
  uint32_t retired;    ///< 1: calls fail at once, since the ranks have changed
  uint32_t delivered;  ///< watched dispatch: tokens of this rank whose rows here are in place
  uint64_t judged;     ///< calls in which hosts judged their places
};

/// Tables of a rank's own memory, by link, block, or both. Host and kernels share this type.
struct RailTables {
  std::byte* base;
  uint32_t links, blocks_max, columns;

  TOKENYARD_HOST_DEVICE RailWorkspace& workspace() const {
    return *reinterpret_cast<RailWorkspace*>(base);
  }
  TOKENYARD_HOST_DEVICE LinkCounts& counts(uint32_t link) const {
    return reinterpret_cast<LinkCounts*>(base + kWorkspaceBytes)[link];
  }
  /// 1 + the position that was last written to this slot of a stage.
  TOKENYARD_HOST_DEVICE uint64_t* written(uint32_t link) const {
    return reinterpret_cast<uint64_t*>(base + slots_at()) + size_t{link} * 2 * kSlotsMax;
  }
  /// 1 + the position that was last read from this slot of a ring.
  TOKENYARD_HOST_DEVICE uint64_t* read(uint32_t link) const { return written(link) + kSlotsMax; }
  /// A block's counts: see TokenColumns.
  TOKENYARD_HOST_DEVICE Stamped* counted(uint32_t block) const {
    return reinterpret_cast<Stamped*>(base + blocks_at()) + size_t{block} * columns;
  }
  /// Epoch in which the places of a block's tokens are known.
  TOKENYARD_HOST_DEVICE uint32_t* routed(uint32_t block) const {
    return reinterpret_cast<uint32_t*>(counted(blocks_max)) + block;
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const {
    return blocks_at() + size_t{blocks_max} * (columns * sizeof(Stamped) + sizeof(uint32_t));
  }

 private:
  static constexpr size_t kWorkspaceBytes = 128;
  static_assert(sizeof(RailWorkspace) <= kWorkspaceBytes);
  TOKENYARD_HOST_DEVICE size_t slots_at() const {
    return kWorkspaceBytes + links * sizeof(LinkCounts);
  }
  TOKENYARD_HOST_DEVICE size_t blocks_at() const {
    return slots_at() + size_t{links} * 2 * kSlotsMax * sizeof(uint64_t);
  }
};

/// The columns of tokens' places, and of sums over tokens: rows for each rank, slots for each
/// other host, choices of each expert, and a refusal.
struct TokenColumns {
  uint32_t ranks, hosts, experts;

  TOKENYARD_HOST_DEVICE uint32_t host(uint32_t number) const { return ranks + number; }
  TOKENYARD_HOST_DEVICE uint32_t per_token() const { return ranks + hosts; }
  TOKENYARD_HOST_DEVICE uint32_t expert(uint32_t number) const { return per_token() + number; }
  TOKENYARD_HOST_DEVICE uint32_t refusal(uint32_t word) const { return expert(experts) + word; }
  TOKENYARD_HOST_DEVICE uint32_t count() const { return refusal(kRefusalWords); }
};

/// The places in a column of a group of neighbouring tokens: which of them have one, a bit each,
/// and the number of the first. (A number for each token took 32 times the stores, and those of
/// 4096 tokens most of 100 us: H200, EP64 on 4 multiprocessors.)
struct alignas(8) GroupPlaces {
  uint32_t first;
  uint32_t going;
};

/// The tables of a route between hosts, in memory of the rank: where its own tokens went, and where
/// it forwards those of its sources.
struct RailRoute {
  std::byte* base;
  uint32_t ranks, hosts, links, locals, tokens, tokens_max;
  uint32_t group_bits;  ///< a group has 2 to the power of these tokens, at most 32

  /// Slots on each link: those that this rank sent, and those that it forwarded.
  TOKENYARD_HOST_DEVICE uint32_t& slots_out(uint32_t link) const { return words()[link]; }
  TOKENYARD_HOST_DEVICE uint32_t& slots_in(uint32_t link) const { return words()[links + link]; }
  /// The first row of a source on a rank of this host.
  TOKENYARD_HOST_DEVICE uint32_t& first_row(uint32_t source, uint32_t place) const {
    return words()[2 * links + source * locals + place];
  }
  TOKENYARD_HOST_DEVICE uint32_t group_of(uint32_t token) const { return token >> group_bits; }
  TOKENYARD_HOST_DEVICE uint32_t groups() const {
    return static_cast<uint32_t>((uint64_t{tokens} + (1u << group_bits) - 1) >> group_bits);
  }
  /// [ranks + hosts]: the places of a group of this rank's tokens, by TokenColumns.
  TOKENYARD_HOST_DEVICE GroupPlaces* places(uint32_t group) const {
    return reinterpret_cast<GroupPlaces*>(words() + header_words()) +
           size_t{group} * (ranks + hosts);
  }
  /// Returns a token's number among this rank's rows for a rank, or slots for a host; -1: it does
  /// not go there.
  TOKENYARD_DEVICE int32_t place(uint32_t token, uint32_t column) const {
    const GroupPlaces of_group = places(group_of(token))[column];
    const uint32_t bit = uint32_t{1} << (token & ((1u << group_bits) - 1));
    if ((of_group.going & bit) == 0) return -1;
    return static_cast<int32_t>(of_group.first + population(of_group.going & (bit - 1)));
  }
  /// [locals]: the row on each rank of this host of a slot that came on a link, or -1.
  TOKENYARD_HOST_DEVICE int32_t* forwarded(uint32_t link, uint32_t slot) const {
    return reinterpret_cast<int32_t*>(places(groups())) +
           (size_t{link} * tokens_max + slot) * locals;
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const {
    return sizeof(uint32_t) * header_words() +
           sizeof(GroupPlaces) * size_t{groups()} * (ranks + hosts) +
           sizeof(int32_t) * size_t{links} * tokens_max * locals;
  }

 private:
  TOKENYARD_HOST_DEVICE uint32_t* words() const { return reinterpret_cast<uint32_t*>(base); }
  /// Even: places lie behind them.
  TOKENYARD_HOST_DEVICE size_t header_words() const {
    return (2 * links + size_t{ranks} * locals + 1) / 2 * 2;
  }
};

/// The bytes of a slot: a row, then what travels with it.
struct SlotLayout {
  uint32_t row_bytes;
  uint32_t scale_words;
  uint32_t choices;  ///< whose ids and numbers travel: topk, or 0 on a known route
  uint32_t weights;  ///< that travel: topk, or 0

  TOKENYARD_HOST_DEVICE uint32_t scales_at() const { return row_bytes; }
  TOKENYARD_HOST_DEVICE uint32_t token_at() const { return scales_at() + 4 * scale_words; }
  /// [choices] int32: expert of each choice, or -1.
  TOKENYARD_HOST_DEVICE uint32_t ids_at() const { return token_at() + (choices == 0 ? 0 : 4); }
  /// [choices] int32: the token's number among its source's rows for the rank of that expert.
  TOKENYARD_HOST_DEVICE uint32_t numbers_at() const { return ids_at() + 4 * choices; }
  TOKENYARD_HOST_DEVICE uint32_t weights_at() const { return numbers_at() + 4 * choices; }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const {
    return (weights_at() + 4 * weights + 15) / 16 * 16;
  }
};

/// Sums over the exchange's calls, for `metrics()`: totals on the device, with a copy for the host.
struct RailStatistics {
  enum LinkTotal : uint32_t {
    sent_bytes,     ///< of slots that were put
    arrived_bytes,  ///< of slots that the peer put here
    credits_ns,     ///< for which nothing was put, since the peer had not read earlier slots
    slots_ns,       ///< for which no slots of the peer were there to be read
  };
  static constexpr uint32_t kLinkTotals = 4;
  /// Time that the rank's warps of a role waited, over all of them.
  enum RoleTotal : uint32_t {
    send_ns,     ///< for room in the stages of other hosts
    forward_ns,  ///< dispatch: for slots to arrive; combine: for room in a stage or partial sums
    add_ns,      ///< combine: for partial sums, once none is left to be sent
  };
  static constexpr uint32_t kRoleTotals = 3;

  uint64_t* totals;  ///< [count()]
  uint64_t* shown;   ///< the same, in memory that the host reads
  uint32_t links;

  TOKENYARD_HOST_DEVICE static uint32_t of_link(uint32_t link, LinkTotal total) {
    return kRoleTotals + link * kLinkTotals + total;
  }
  TOKENYARD_HOST_DEVICE uint32_t count() const { return kRoleTotals + links * kLinkTotals; }
};

/// Everything of an exchange across hosts that a kernel needs besides its call.
struct Rails {
  Hosts hosts;
  WindowLayout layout;
  Peers windows;      ///< first parts of all ranks; only those of this host have an address
  std::byte* far;     ///< second part of this rank
  MemoryKey key;      ///< of that
  std::byte* rings;   ///< third part of this rank
  const Link* links;  ///< [tables.links]
  const uint32_t*
      link_to;  ///< [hosts] link of the peer that forwards there; of no use for this host
  RailTables tables;
  TokenColumns columns;
  NetworkQueues queues;
  uint32_t fill_queue, drain_queue;  ///< at every peer; one thread uses each: a coordinator
  SlotLayout slot;
  uint32_t capacity;           ///< slots per ring
  uint32_t chunk;              ///< slots per put and per credit, at least, while more are to come
  uint32_t put_slots;          ///< slots per put at most
  uint32_t slot_stages_bytes;  ///< shared memory per moving warp
  RailStatistics statistics;

  template <class T>
  TOKENYARD_DEVICE Peer<T> word(uint32_t rank, size_t offset) const {
    return (windows.of(rank) + static_cast<std::ptrdiff_t>(offset)).template as<T>();
  }
  template <class T>
  TOKENYARD_DEVICE T* mine(size_t offset) const {
    return reinterpret_cast<T*>(far + offset);
  }
};

}  // namespace tokenyard::internode
