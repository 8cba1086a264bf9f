/// The combine kernel between hosts. See across_hosts.hpp and combine.hpp for the protocol.
#pragma once

#include "device/apart.hpp"
#include "expert_parallel/internode/kernels/add_rows_kernel.hpp"
#include "expert_parallel/internode/kernels/greetings_kernel.hpp"

namespace tokenyard::internode {

using throughput::Weights;

/// A combine as one thread sees it.
struct Combine {
  const CombineParams& params;
  const CombineTail& tail;
  const RailCall& call;

  TOKENYARD_DEVICE const throughput::CombineParams& input() const { return params.combine; }
  TOKENYARD_DEVICE const Hosts& hosts() const { return params.rails.hosts; }
};

/// The words of a rank about its combine.
struct CombineWords {
  const RailCall& call;

  TOKENYARD_DEVICE bool counts() const { return false; }
  TOKENYARD_DEVICE ExpertPartition partition() const { return {}; }
  TOKENYARD_DEVICE uint32_t ready_word(uint32_t word, uint32_t) const {
    if (word == kSlotsComing) return 0;  // Both ends know them from the route.
    return throughput::ready_value(call.params, static_cast<throughput::ReadyWord>(word),
                                   call.shared.call.route_epoch);
  }
  TOKENYARD_DEVICE bool refuses() const { return false; }
  TOKENYARD_DEVICE uint32_t refusal(uint32_t) const { return 0; }
  TOKENYARD_DEVICE uint32_t count(uint32_t) const { return 0; }
  TOKENYARD_DEVICE uint32_t expert(uint32_t) const { return 0; }
};

/// Where a rank of this host has its results. A lane per rank holds one, so that no sum's way leads
/// through tables: while warps poll, nothing of those stays in the cache.
struct Results {
  uint32_t rank = 0;
  Peer<std::byte> rows, weights;  ///< null: there are no weights

  /// Called by all lanes once this host's ready words are known.
  TOKENYARD_DEVICE static Results mine(const Combine& combine) {
    using throughput::ReadyWord;
    const RailCall& call = combine.call;
    if (warp::lane() >= combine.hosts().locals) return {};
    const uint32_t rank = combine.hosts().local(warp::lane());
    const auto read = [&](ReadyWord word) {
      // Relaxed: the block that made them known has acquired them.
      return load<Order::relaxed, Scope::sys>(
                 call.rails.word<Stamped>(call.params.rank, call.rails.layout.ready_word(
                                                                rank, static_cast<uint32_t>(word))))
          .value;
    };
    const throughput::CallWord word{read(ReadyWord::call)};
    const Peer<std::byte> arena = combine.input().call.arenas.of(rank);
    const auto at = [&](ReadyWord offset) {
      return arena + static_cast<std::ptrdiff_t>(size_t{read(offset)} * throughput::kOffsetUnit);
    };
    return {.rank = rank,
            .rows = at(ReadyWord::rows),
            .weights = word.weights() == Weights::with ? at(ReadyWord::beside) : Peer<std::byte>{}};
  }
};

/// This host's part of a token: its row on each rank of this host, a lane per rank; -1: none.
struct NearRows {
  const Combine& combine;
  const Results& mine;
  int32_t row;

  /// Writes the rows' addresses, in rank order; returns their number. Called by all lanes.
  TOKENYARD_DEVICE uint32_t list(Addend* to) const {
    const uint32_t have = warp::ballot(row >= 0);
    if (row >= 0) to[population(have & lanes_below())] = addend(mine.rows, row);
    return population(have);
  }
  /// Returns a row of a rank of this host, whose rows begin at `rows`.
  TOKENYARD_DEVICE Addend addend(Peer<std::byte> rows, int32_t of_rank) const {
    return {.row = (rows + static_cast<std::ptrdiff_t>(size_t(of_rank) * combine.input().row_bytes))
                       .template as<const std::byte>(),
            .is_partial = false};
  }
  /// Writes the addends of a token in the caller's order of ranks; returns their number. The
  /// partial sum of another host, which `slot_of(host)` returns, counts for the first of its ranks.
  /// A rank that the order names twice is added once. Called by all lanes.
  template <class SlotOf>
  TOKENYARD_DEVICE uint32_t list_in_order(uint32_t token, SlotOf slot_of, Addend* to) const {
    const throughput::CombineParams& input = combine.input();
    const Hosts& hosts = combine.hosts();
    uint64_t hosts_seen = 0;
    uint32_t places_seen = 0, count = 0;
    for (uint32_t turn = 0; turn < hosts.ranks; ++turn) {
      const uint32_t rank = load_cached(input.order + size_t{token} * hosts.ranks + turn);
      if (rank >= hosts.ranks) continue;  // The caller's order may be invalid.
      const uint32_t host = hosts.host_of[rank], place = hosts.place_of[rank];
      if (host != hosts.host) {
        if ((hosts_seen >> host & 1) != 0) continue;
        hosts_seen |= uint64_t{1} << host;
        const std::byte* const slot = slot_of(host);
        if (slot == nullptr) continue;
        if (warp::elect()) to[count] = {.row = Peer<const std::byte>(slot), .is_partial = true};
        ++count;
        continue;
      }
      if ((places_seen >> place & 1) != 0) continue;
      places_seen |= uint32_t{1} << place;
      const int32_t there = warp::shuffle(row, place);
      const Peer<std::byte> rows = address_of_lane(mine.rows, place);
      if (there < 0) continue;
      if (warp::elect()) to[count] = addend(rows, there);
      ++count;
    }
    return count;
  }
  /// Returns the sum of a choice's weights. Called by all lanes.
  TOKENYARD_DEVICE float weight(uint32_t choice) const {
    const throughput::CombineParams& input = combine.input();
    float sum = 0;
    for (uint32_t place = 0; place < combine.hosts().locals; ++place) {
      const int32_t of_rank = warp::shuffle(row, place);
      const Peer<std::byte> weights = address_of_lane(mine.weights, place);
      if (of_rank < 0 || !weights || choice >= input.topk) continue;
      sum += load<Order::weak, Scope::sys>(
          weights.template as<const float>() +
          static_cast<std::ptrdiff_t>(size_t(of_rank) * input.topk + choice));
    }
    return sum;
  }
};

/// Runs `body` with the type of a partial sum's pieces, which names that of the rows'.
template <class Body>
TOKENYARD_DEVICE void with_partial(const Combine& combine, Body body) {
  const bool wide = combine.params.wide;
  switch (combine.input().call.format.type()) {
    case throughput::ElementType::fp16:
      if (wide) return body(WidePiece<throughput::Fp16Piece>{});
      return body(RowPiece<throughput::Fp16Piece>{});
    case throughput::ElementType::fp32:
      return body(RowPiece<throughput::Fp32Piece>{});
    default:
      if (wide) return body(WidePiece<throughput::Bf16Piece>{});
      return body(RowPiece<throughput::Bf16Piece>{});
  }
}

/// Returns the partial sums for the other end of a link, and those that come from there.
TOKENYARD_DEVICE uint32_t sums_out(const Combine& combine, uint32_t link) {
  return combine.params.rails.links[link].sends ? combine.params.route.slots_in(link) : 0;
}
TOKENYARD_DEVICE uint32_t sums_in(const Combine& combine, uint32_t link) {
  return combine.params.rails.links[link].forwards ? combine.params.route.slots_out(link) : 0;
}

/// A partial sum that this warp alone computes, and for which its stage has room.
struct ClaimedSum {
  uint32_t link, number;
};

/// The claims of a warp on partial sums, a lane per link: on the next link in turn, and on all
/// others only while that one's stage has no room. So the first sums for each peer are computed
/// first, and a warp never waits for one peer while another is idle.
class SumClaims {
 public:
  TOKENYARD_DEVICE explicit SumClaims(const Combine& combine) : call_(combine.call) {
    const uint32_t link = warp::lane();
    last_ = (call_.mover() + block::index()) % std::max(call_.links(), 1u);
    if (link >= call_.links()) return;
    sums_ = sums_out(combine, link);
    room_ = call_.rails.capacity;
  }

  // All lanes call these, alike.

  /// Returns whether sums may be left.
  TOKENYARD_DEVICE bool any() const { return warp::any(number_ < sums_ || !is_claimed()); }
  /// Finds a sum whose stage has room; returns false if there is none yet.
  TOKENYARD_DEVICE bool next(ClaimedSum& sum) {
    if (take(sum)) return true;
    if (const uint32_t idle = warp::ballot(!is_claimed()); idle != 0) {
      if (warp::lane() == behind_last(idle)) claim();
      if (take(sum)) return true;
      if (!is_claimed()) claim();
    }
    return take(sum);
  }

 private:
  static constexpr uint32_t kUnclaimed = 0xffffffff;

  /// Returns whether this lane's claim is to be waited for, or found no sum.
  TOKENYARD_DEVICE bool is_claimed() const { return number_ != kUnclaimed || sums_ == 0; }
  /// Returns the link of a set that follows the last one, peers in turn.
  TOKENYARD_DEVICE uint32_t behind_last(uint32_t links) const {
    const uint32_t behind = links & ~((uint32_t{2} << last_) - 1);
    return first_bit(behind != 0 ? behind : links);
  }
  TOKENYARD_DEVICE bool take(ClaimedSum& sum) {
    const uint32_t have_room = warp::ballot(number_ < sums_ && has_room());
    if (have_room == 0) return false;
    last_ = behind_last(have_room);
    sum = {last_, warp::shuffle(number_, last_)};
    if (warp::lane() == last_) number_ = kUnclaimed;
    // Passes on what that lane has acquired.
    warp::sync();
    return true;
  }
  TOKENYARD_DEVICE bool has_room() {
    // Looks again only where the last look did not show it: each costs a load from far away.
    if (number_ < room_) return true;
    const LinkCounts& counts = call_.rails.tables.counts(warp::lane());
    // Acquires the network's reads.
    room_ = static_cast<uint32_t>(load<Order::acquire, Scope::gpu>(&counts.reusable) -
                                  counts.first_out) +
            call_.rails.capacity;
    return number_ < room_;
  }
  TOKENYARD_DEVICE void claim() {
    // Relaxed: the word decides who computes a sum, and orders nothing.
    number_ =
        fetch_add<Order::relaxed, Scope::gpu>(&call_.rails.tables.counts(warp::lane()).next_sum, 1);
    if (number_ >= sums_) sums_ = 0;
  }

  const RailCall& call_;
  uint32_t sums_ = 0, number_ = kUnclaimed;
  uint32_t last_;      // The link that came last.
  uint32_t room_ = 0;  // The stage has room for the sums before this one.
};

/// The claim of a warp on a token of this rank, whose partial sums may be still to come.
class TokenClaim {
 public:
  TOKENYARD_DEVICE explicit TokenClaim(const Combine& combine) : combine_(combine) {
    const RailCall& call = combine.call;
    const uint32_t link = warp::lane();
    if (link >= call.links() || !call.rails.links[link].forwards) return;
    column_ = call.rails.columns.host(call.rails.links[link].host);
  }

  // All lanes call these, alike.

  /// Returns whether tokens may be left.
  TOKENYARD_DEVICE bool any() const { return !is_claimed_ || token_ < combine_.input().tokens; }
  TOKENYARD_DEVICE uint32_t token() const { return token_; }
  /// Returns whether there is a token whose partial sums have come; claims one first.
  TOKENYARD_DEVICE bool have_come() {
    if (!is_claimed_) claim();
    if (!any()) return false;
    // Looks again only where the last look did not show it: each costs a load from far away.
    // Behind a refused dispatch, the count of what has come is an older one.
    if (end_ > seen_)
      seen_ = static_cast<uint32_t>(std::max(has_arrived(combine_.call, warp::lane()), first_in()) -
                                    first_in());
    const bool come = warp::all(end_ <= seen_);
    // Passes on what each lane has acquired.
    if (come) warp::sync();
    return come;
  }
  /// Gives the token's slots back, which have been read.
  TOKENYARD_DEVICE void pass() {
    warp::sync();
    if (end_ != 0) mark_read(combine_.call, warp::lane(), first_in() + end_ - 1);
    is_claimed_ = false;
  }

 private:
  TOKENYARD_DEVICE void claim() {
    const RailCall& call = combine_.call;
    token_ = warp::once(
        [&] { return fetch_add<Order::relaxed, Scope::gpu>(&call.workspace().next_token, 1); });
    end_ = 0;
    is_claimed_ = true;
    if (!any() || column_ == kNone) return;
    const int32_t place = combine_.params.route.place(token_, column_);
    if (place >= 0) end_ = static_cast<uint32_t>(place) + 1;
  }
  /// Returns the position of the call's first slot of this lane's link.
  TOKENYARD_DEVICE uint64_t first_in() const {
    return combine_.call.rails.tables.counts(warp::lane()).first_in;
  }

  const Combine& combine_;
  bool is_claimed_ = false;
  uint32_t token_ = 0;
  uint32_t column_ = kNone;  // Of this lane's link, if its peer forwards.
  uint32_t end_ = 0;         // Slots there up to the token's, which is the last; 0: it has none.
  uint32_t seen_ = 0;        // Slots there that have come.
};

/// Sums this host's results for a token of another host. Called by all lanes of a mover.
TOKENYARD_DEVICE void forward(const Combine& combine, const Results& mine, RowAdder& adder,
                              const ClaimedSum& sum) {
  const RailCall& call = combine.call;
  const throughput::CombineParams& input = combine.input();
  const int32_t row = warp::lane() < combine.hosts().locals
                          ? combine.params.route.forwarded(sum.link, sum.number)[warp::lane()]
                          : -1;
  const NearRows rows{combine, mine, row};
  const uint64_t position = call.rails.tables.counts(sum.link).first_out + sum.number;
  std::byte* const slot = stage_slot(call, sum.link, position);
  const uint32_t addends = rows.list(adder.addends());
  with_partial(combine, [&](auto partial) {
    using Partial = decltype(partial);
    adder.add<Partial, Partial>(addends, reinterpret_cast<Bytes16*>(slot));
  });
  auto* const weights = reinterpret_cast<float*>(slot + call.rails.slot.weights_at());
  for (uint32_t first = 0; first < input.topk; first += kWarpLanes) {
    const uint32_t choice = first + warp::lane();
    const float weight = rows.weight(choice);
    if (choice < input.topk) weights[choice] = weight;
  }
  warp::sync();
  if (warp::elect()) mark_written(call, sum.link, position);
}

/// Adds up a token's results. Called by all lanes once its partial sums have come.
TOKENYARD_DEVICE void add_token(const Combine& combine, const Results& mine, RowAdder& adder,
                                uint32_t token) {
  const RailCall& call = combine.call;
  const throughput::CombineParams& input = combine.input();
  const Hosts& hosts = combine.hosts();
  int32_t row = -1;
  if (warp::lane() < hosts.locals) {
    const RailRoute& route = combine.params.route;
    const uint32_t first_row = route.first_row(call.params.rank, warp::lane());
    row = route.place(token, mine.rank);
    if (row >= 0) row += static_cast<int32_t>(first_row);
  }
  const NearRows near{combine, mine, row};
  /// Returns the slot of a host's partial sum, or null.
  const auto slot_of = [&](uint32_t host) -> const std::byte* {
    const int32_t place = combine.params.route.place(token, call.rails.columns.host(host));
    if (place < 0) return nullptr;
    const uint32_t link = call.rails.link_to[host];
    return ring_slot(call, link,
                     call.rails.tables.counts(link).first_in + static_cast<uint64_t>(place));
  };
  const size_t at = size_t{token} * input.row_bytes;
  Addend* const addends = adder.addends();
  uint32_t count = 0;
  for (const std::byte* const bias : input.biases)
    if (bias != nullptr) {
      if (warp::elect())
        addends[count] = {.row = Peer<const std::byte>(bias + at), .is_partial = false};
      ++count;
    }
  if (input.order != nullptr) count += near.list_in_order(token, slot_of, addends + count);
  for (uint32_t first = 0; input.order == nullptr && first < hosts.hosts; first += kWarpLanes) {
    const uint32_t host = first + warp::lane();
    const bool is_other = host < hosts.hosts && host != hosts.host;
    const std::byte* const slot = is_other ? slot_of(host) : nullptr;
    const uint32_t have = warp::ballot(slot != nullptr);
    uint32_t own = 0;
    if (hosts.host >= first && hosts.host < first + kWarpLanes) {
      const uint32_t lower = (uint32_t{1} << (hosts.host - first)) - 1;
      own = near.list(addends + count + population(have & lower));
    }
    if (slot != nullptr)
      addends[count + population(have & lanes_below()) + (host > hosts.host ? own : 0)] = {
          .row = Peer<const std::byte>(slot), .is_partial = true};
    count += population(have) + own;
  }
  with_partial(combine, [&](auto partial) {
    using Partial = decltype(partial);
    using Row = RowPiece<typename Partial::Piece>;
    adder.add<Partial, Row>(count, reinterpret_cast<Bytes16*>(input.out + at));
  });
  if (call.params.weights != Weights::with) return;
  for (uint32_t first = 0; first < input.topk; first += kWarpLanes) {
    const uint32_t choice = first + warp::lane();
    float sum = 0;
    for (uint32_t host = 0; host < hosts.hosts; ++host) {
      if (host == hosts.host) {
        sum += near.weight(choice);
      } else if (const std::byte* const slot = slot_of(host); slot != nullptr) {
        if (choice < input.topk)
          sum += reinterpret_cast<const float*>(slot + call.rails.slot.weights_at())[choice];
      }
    }
    if (choice < input.topk) input.out_weights[size_t{token} * input.topk + choice] = sum;
  }
}

/// Sums rows as long as there are any: other hosts' tokens first, since those ranks wait for them,
/// and this rank's while no stage has room. Called by each mover.
TOKENYARD_DEVICE void move(const Combine& combine) {
  const RailCall& call = combine.call;
  // Acquires the words of this host, and the results that they announce.
  if (!warp::all(call.await_epoch(Phase::known, &call.workspace().near))) return;
  const Results mine = Results::mine(combine);
  RowAdder adder(combine.tail, call.mover(), combine.input().row_bytes, call.params.rank);
  SumClaims sums(combine);
  TokenClaim token(combine);
  // Values, and not RoleWaits: with objects that a reference chose, 4096 tokens took 20 % longer
  // (H200).
  const bool counts = call.mover() == 0;
  uint64_t for_room_ns = 0, for_sums_ns = 0;
  while (sums.any() || token.any()) {
    ClaimedSum sum{};
    bool forwards = false, adds = false;
    const auto find = [&] {
      forwards = sums.next(sum);
      adds = !forwards && token.have_come();
      return forwards || adds || !(sums.any() || token.any());
    };
    if (!find()) {
      const bool for_room = sums.any();
      const uint64_t begun_ns = counts ? now_ns() : 0;
      if (!call.await_own_by_warp(Phase::sums, find)) return;
      const uint64_t waited_ns = counts ? now_ns() - begun_ns : 0;
      for_room_ns += for_room ? waited_ns : 0;
      for_sums_ns += for_room ? 0 : waited_ns;
    }
    if (forwards) forward(combine, mine, adder, sum);
    if (!adds) continue;
    add_token(combine, mine, adder, token.token());
    token.pass();
  }
  add_role_wait(call, RailStatistics::forward_ns, for_room_ns);
  add_role_wait(call, RailStatistics::add_ns, for_sums_ns);
}

/// Greets all ranks, hears those of this host, then all. A warp of block 0.
TOKENYARD_DEVICE void receive(const Combine& combine) {
  const RailCall& call = combine.call;
  const Hosts& hosts = combine.hosts();
  const throughput::ReadyWords ready_words = combine.tail.ready_words();
  greet_host(call, CombineWords{call});
  if (!await_host_words(call, ready_words)) return;
  // Where calls differ, addresses mean something else. All ranks find that below.
  bool same = true;
  for (uint32_t place = warp::lane(); place < hosts.locals; place += kWarpLanes) {
    const auto equals = [&](throughput::ReadyWord word) {
      return ready_words.of(word, hosts.local(place)) == ready_words.of(word, call.params.rank);
    };
    same = same &&
           ready_words.call(hosts.local(place)).kind() == ready_words.call(call.params.rank).kind();
    same = same && equals(throughput::ReadyWord::route) && equals(throughput::ReadyWord::format);
  }
  if (warp::all(same) && warp::elect())
    // Release: passes on what the words of this host have released.
    store<Order::release, Scope::gpu>(&call.workspace().near, call.epoch());
  if (!await_other_words(call, ready_words)) return;
  throughput::compare_calls(call.params, ready_words, call.deadline,
                            throughput::Phase::combine_ready, ThreadGroup::of_warp(), nullptr);
  end_receive(call);
}

TOKENYARD_DEVICE void coordinate_sends(const Combine& combine) {
  greet_rails(combine.call, CombineWords{combine.call});
  each_own_link(combine.call, [&](uint32_t link) {
    RingFiller(combine.call, link, sums_out(combine, link)).fill();
  });
}

TOKENYARD_DEVICE void coordinate_forwards(const Combine& combine) {
  if (!pass_on_greetings(combine.call, {}, false, combine.tail.greeting())) return;
  each_own_link(combine.call, [&](uint32_t link) {
    RingDrainer(combine.call, link, sums_in(combine, link)).drain(Phase::sums);
  });
}

TOKENYARD_DEVICE void run_role(const Combine& combine) {
  switch (warp::index()) {
    case kSendCoordinator:
      return coordinate_sends(combine);
    case kForwardCoordinator:
      return coordinate_forwards(combine);
    case kReceiver:
      if (block::index() == 0) receive(combine);
      return;
    default:
      move(combine);
      end_moves(combine.call);
  }
}

TOKENYARD_DEVICE void combine_between_hosts(const CombineParams& params) {
  grid::wait_for_previous();
  auto& shared = block::shared<RailShared>();
  CombineTail tail = CombineTail::of(params);
  tail.base = block::shared_tail<RailShared>();
  ready_parts(tail);
  const RailDeadlines deadlines(params.combine.call.wait_context);
  const RailCall call{params.combine.call, params.rails,    shared,
                      deadlines.words,     deadlines.rings, deadlines.host};
  if (!begin_rail_call(call.params, call.workspace(), shared, call.deadline)) return;
  const Combine combine{params, tail, call};
  run_role(combine);
  end_rail_call(
      call, [&](uint32_t link) { return sums_out(combine, link); },
      [&](uint32_t link) { return sums_in(combine, link); });
}

TOKENYARD_DEFINE_KERNEL(combine_kernel, combine_between_hosts, CombineParams, RailShared,
                        kCombineThreadsMax)

}  // namespace tokenyard::internode
