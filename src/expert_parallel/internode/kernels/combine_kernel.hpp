/// The combine kernel between hosts. See across_hosts.hpp and combine.hpp for the protocol.
#pragma once

#include "device/apart.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/internode/kernels/combine.hpp"
#include "expert_parallel/internode/kernels/greetings_kernel.hpp"
#include "expert_parallel/throughput/kernels/piece_sums_kernel.hpp"

namespace tokenyard::internode {

using throughput::Weights;
using Fp32Vector = throughput::Fp32Piece;

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

/// Where a rank of this host has its results. A lane per rank holds one.
struct Results {
  uint32_t rows = 0, weights = 0;  ///< in kOffsetUnit
  uint32_t has_weights = 0;

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
    return {.rows = read(ReadyWord::rows),
            .weights = read(ReadyWord::beside),
            .has_weights = word.weights() == Weights::with ? uint32_t{1} : uint32_t{0}};
  }
};

/// This host's part of a token: its row on each rank of this host, a lane per rank; -1: none.
struct NearRows {
  const Combine& combine;
  const Results& mine;
  int32_t row;

  /// Calls `body(address)` for each row, in rank order. Called by all lanes.
  template <class Body>
  TOKENYARD_DEVICE void each(Body body) const {
    const throughput::CombineParams& input = combine.input();
    for (uint32_t place = 0; place < combine.hosts().locals; ++place) {
      const int32_t of_rank = warp::shuffle(row, place);
      const uint32_t rows = warp::shuffle(mine.rows, place);
      if (of_rank < 0) continue;
      const size_t at = size_t{rows} * throughput::kOffsetUnit + size_t(of_rank) * input.row_bytes;
      body((input.call.arenas.of(combine.hosts().local(place)) + static_cast<std::ptrdiff_t>(at))
               .template as<const Bytes16>());
    }
  }
  /// Returns the sum of a choice's weights. Called by all lanes.
  TOKENYARD_DEVICE float weight(uint32_t choice) const {
    const throughput::CombineParams& input = combine.input();
    float sum = 0;
    for (uint32_t place = 0; place < combine.hosts().locals; ++place) {
      const int32_t of_rank = warp::shuffle(row, place);
      const uint32_t weights = warp::shuffle(mine.weights, place);
      const bool there_are = warp::shuffle(mine.has_weights, place) != 0;
      if (of_rank < 0 || !there_are || choice >= input.topk) continue;
      const auto from = (input.call.arenas.of(combine.hosts().local(place)) +
                         static_cast<std::ptrdiff_t>(size_t{weights} * throughput::kOffsetUnit))
                            .template as<const float>();
      sum += load<Order::weak, Scope::sys>(
          from + static_cast<std::ptrdiff_t>(size_t(of_rank) * input.topk + choice));
    }
    return sum;
  }
};

/// Pieces of a row that a lane sums at a time.
inline constexpr uint32_t kPiecesAtOnce = 4;

/// Pieces of a row that were summed, as fp32: two vectors for one of narrower elements.
template <class Piece>
struct WidePiece {
  static constexpr uint32_t kVectors = Piece::kValues / Fp32Vector::kValues;

  TOKENYARD_DEVICE static void store(Bytes16* row, uint32_t piece,
                                     const throughput::PieceSums<Piece>& sums) {
    for (uint32_t vector = 0; vector < kVectors; ++vector) {
      Bytes16 values;
      for (uint32_t i = 0; i < Fp32Vector::kValues; ++i)
        values.word[i] = std::bit_cast<uint32_t>(sums.sums[vector * Fp32Vector::kValues + i]);
      store_vector(row + size_t{piece} * kVectors + vector, values);
    }
  }
  struct Loaded {
    Bytes16 vectors[kVectors] = {};
  };
  TOKENYARD_DEVICE static Loaded load(const Bytes16* row, uint32_t piece) {
    Loaded loaded;
    for (uint32_t vector = 0; vector < kVectors; ++vector)
      loaded.vectors[vector] = load_vector(row + size_t{piece} * kVectors + vector);
    return loaded;
  }
  TOKENYARD_DEVICE static void add(throughput::PieceSums<Piece>& sums, const Loaded& loaded) {
    for (uint32_t vector = 0; vector < kVectors; ++vector)
      for (uint32_t i = 0; i < Fp32Vector::kValues; ++i)
        sums.sums[vector * Fp32Vector::kValues + i] += Fp32Vector::value(loaded.vectors[vector], i);
  }
};

/// Sums rows piece by piece. `each_addend(add, add_wide)` calls one of both for every addend in
/// order: `add(load)`, where `load(piece)` loads one of its pieces, or `add_wide(row)` for a row of
/// fp32 in this rank's memory. `store(piece, sums)` stores a piece. Called by all lanes.
template <class Piece, class EachAddend, class Store>
TOKENYARD_DEVICE void sum_pieces(uint32_t row_bytes, EachAddend each_addend, Store store) {
  const uint32_t pieces = row_bytes / uint32_t{sizeof(Bytes16)};
  for (uint32_t base = 0; base < pieces; base += kPiecesAtOnce * kWarpLanes) {
    const uint32_t first = base + warp::lane();
    throughput::PieceSums<Piece> sums[kPiecesAtOnce];
    TOKENYARD_UNROLL
    for (auto& sum : sums) sum.clear();
    // An addend is added once the next one's loads are under way.
    Bytes16 before[kPiecesAtOnce] = {};
    bool there_is = false;
    const auto add_before = [&] {
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kPiecesAtOnce; ++i) sums[i].add(before[i]);
    };
    const auto add_wide = [&](const Bytes16* row) {
      if (there_is) add_before();
      there_is = false;
      typename WidePiece<Piece>::Loaded values[kPiecesAtOnce] = {};
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kPiecesAtOnce; ++i)
        if (first + i * kWarpLanes < pieces)
          values[i] = WidePiece<Piece>::load(row, first + i * kWarpLanes);
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kPiecesAtOnce; ++i) WidePiece<Piece>::add(sums[i], values[i]);
    };
    const auto add = [&](auto load) {
      Bytes16 values[kPiecesAtOnce] = {};
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kPiecesAtOnce; ++i)
        if (first + i * kWarpLanes < pieces) values[i] = load(first + i * kWarpLanes);
      if (there_is) add_before();
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kPiecesAtOnce; ++i) before[i] = values[i];
      there_is = true;
    };
    each_addend(add, add_wide);
    if (there_is) add_before();
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kPiecesAtOnce; ++i)
      if (first + i * kWarpLanes < pieces) store(first + i * kWarpLanes, sums[i]);
  }
}

/// Partial sums that travel as fp32, or rounded.
template <bool is_wide>
struct Partials {
  static constexpr bool kWide = is_wide;
};

/// Runs `body` with the piece type of the rows, and the kind of partial sums.
template <class Body>
TOKENYARD_DEVICE void with_piece(const Combine& combine, Body body) {
  const bool wide = combine.params.wide;
  switch (combine.input().call.format.type()) {
    case throughput::ElementType::fp16:
      if (wide) return body(throughput::Fp16Piece{}, Partials<true>{});
      return body(throughput::Fp16Piece{}, Partials<false>{});
    case throughput::ElementType::fp32:
      return body(throughput::Fp32Piece{}, Partials<false>{});
    default:
      if (wide) return body(throughput::Bf16Piece{}, Partials<true>{});
      return body(throughput::Bf16Piece{}, Partials<false>{});
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

/// The claims of a warp: one per link, a lane each, on a partial sum whose stage may have no room
/// yet. A warp takes whichever has room, so it never waits for one peer while another is idle.
class SumClaims {
 public:
  TOKENYARD_DEVICE explicit SumClaims(const Combine& combine) : call_(combine.call) {
    const uint32_t link = warp::lane();
    last_ = (call_.mover() + block::index()) % kWarpLanes;
    if (link < call_.links()) sums_ = sums_out(combine, link);
    if (sums_ != 0) claim();
  }

  /// Returns whether `next` would find room at once, or nothing more to do. Called by all lanes.
  TOKENYARD_DEVICE bool would_not_wait() const {
    return !warp::any(number_ < sums_) || warp::any(number_ < sums_ && has_room());
  }
  /// Waits for room on any link. Called by all lanes, alike. Returns false once there are no more,
  /// or if the call has failed.
  TOKENYARD_DEVICE bool next(ClaimedSum& sum) {
    if (!warp::any(number_ < sums_)) return false;
    uint32_t have_room = 0;
    const bool come = call_.await_own_by_warp(Phase::stage, [&] {
      have_room = warp::ballot(number_ < sums_ && has_room());
      return have_room != 0;
    });
    if (!come) return false;
    // Peers in turn.
    const uint32_t behind = have_room & ~((uint32_t{2} << last_) - 1);
    last_ = first_bit(behind != 0 ? behind : have_room);
    sum = {last_, warp::shuffle(number_, last_)};
    if (warp::lane() == last_) claim();
    // Passes on what that lane has acquired.
    warp::sync();
    return true;
  }

 private:
  TOKENYARD_DEVICE bool has_room() const {
    const LinkCounts& counts = call_.rails.tables.counts(warp::lane());
    // Acquires the network's reads.
    return counts.first_out + number_ <
           load<Order::acquire, Scope::gpu>(&counts.reusable) + call_.rails.capacity;
  }
  TOKENYARD_DEVICE void claim() {
    // Relaxed: the word decides who computes a sum, and orders nothing.
    number_ =
        fetch_add<Order::relaxed, Scope::gpu>(&call_.rails.tables.counts(warp::lane()).next_sum, 1);
  }

  const RailCall& call_;
  uint32_t sums_ = 0, number_ = 0;
  uint32_t last_;  // The link that came last.
};

/// Sums this host's results for tokens of other hosts. Called by each mover.
TOKENYARD_DEVICE bool forward(const Combine& combine, const Results& mine) {
  const RailCall& call = combine.call;
  const throughput::CombineParams& input = combine.input();
  SumClaims claims(combine);
  RoleWaits waits(call);
  const auto next = [&](ClaimedSum& sum) {
    if (claims.would_not_wait()) return claims.next(sum);
    return waits.time([&] { return claims.next(sum); });
  };
  for (ClaimedSum sum; next(sum);) {
    const int32_t row = warp::lane() < combine.hosts().locals
                            ? combine.params.route.forwarded(sum.link, sum.number)[warp::lane()]
                            : -1;
    const NearRows rows{combine, mine, row};
    const uint64_t position = call.rails.tables.counts(sum.link).first_out + sum.number;
    std::byte* const slot = stage_slot(call, sum.link, position);
    auto* const partial = reinterpret_cast<Bytes16*>(slot);
    with_piece(combine, [&](auto piece, auto partials) {
      using Piece = decltype(piece);
      sum_pieces<Piece>(
          input.row_bytes,
          [&](auto add, auto) {
            rows.each([&](Peer<const Bytes16> from) {
              add([&](uint32_t at) { return load_vector(from + at); });
            });
          },
          [&](uint32_t at, const throughput::PieceSums<Piece>& sums) {
            if constexpr (decltype(partials)::kWide)
              WidePiece<Piece>::store(partial, at, sums);
            else
              store_vector(partial + at, sums.rounded());
          });
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
  waits.add_to(RailStatistics::forward_ns);
  return !warp::any(call.far_deadline.failed());
}

/// Waits until the partial sums of a token have come, a lane per link. Called by all lanes.
TOKENYARD_DEVICE bool await_sums(const Combine& combine, RoleWaits& waits, const int32_t* places) {
  const RailCall& call = combine.call;
  const uint32_t link = warp::lane();
  uint64_t needed = 0;
  if (link < call.links() && call.rails.links[link].forwards) {
    const int32_t place = places[call.rails.columns.host(call.rails.links[link].host)];
    if (place >= 0)
      needed = call.rails.tables.counts(link).first_in + static_cast<uint64_t>(place) + 1;
  }
  const auto have_come = [&] { return needed == 0 || has_arrived(call, link) >= needed; };
  const bool all = warp::all(have_come()) ||
                   waits.time([&] { return warp::all(call.await_own(Phase::sums, have_come)); });
  // Passes on what each lane has acquired.
  warp::sync();
  return all;
}

/// Adds up a token's results. Called by all lanes once its partial sums have come.
TOKENYARD_DEVICE void add_token(const Combine& combine, const Results& mine, uint32_t token,
                                const int32_t* places) {
  const RailCall& call = combine.call;
  const throughput::CombineParams& input = combine.input();
  const Hosts& hosts = combine.hosts();
  int32_t row = -1;
  if (warp::lane() < hosts.locals) {
    row = places[hosts.local(warp::lane())];
    if (row >= 0)
      row += static_cast<int32_t>(combine.params.route.first_row(call.params.rank, warp::lane()));
  }
  const NearRows near{combine, mine, row};
  /// Returns the slot of a host's partial sum, or null.
  const auto slot_of = [&](uint32_t host) -> const std::byte* {
    const int32_t place = places[call.rails.columns.host(host)];
    if (place < 0) return nullptr;
    const uint32_t link = call.rails.link_to[host];
    return ring_slot(call, link,
                     call.rails.tables.counts(link).first_in + static_cast<uint64_t>(place));
  };
  const size_t at = size_t{token} * input.row_bytes;
  auto* const out = reinterpret_cast<Bytes16*>(input.out + at);
  with_piece(combine, [&](auto piece, auto partials) {
    using Piece = decltype(piece);
    sum_pieces<Piece>(
        input.row_bytes,
        [&](auto add, auto add_wide) {
          const auto add_own = [&](const std::byte* from) {
            const auto* const vectors = reinterpret_cast<const Bytes16*>(from);
            add([&](uint32_t i) { return load_vector(vectors + i); });
          };
          for (const std::byte* const bias : input.biases)
            if (bias != nullptr) add_own(bias + at);
          for (uint32_t host = 0; host < hosts.hosts; ++host) {
            if (host == hosts.host)
              near.each([&](Peer<const Bytes16> from) {
                add([&](uint32_t i) { return load_vector(from + i); });
              });
            else if (const std::byte* const slot = slot_of(host)) {
              if constexpr (decltype(partials)::kWide)
                add_wide(reinterpret_cast<const Bytes16*>(slot));
              else
                add_own(slot);
            }
          }
        },
        [&](uint32_t piece_at, const throughput::PieceSums<Piece>& sums) {
          store_vector(out + piece_at, sums.rounded());
        });
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

/// Adds up the results of this rank's tokens, in their order. Called by each mover.
TOKENYARD_DEVICE bool add_results(const Combine& combine, const Results& mine) {
  const RailCall& call = combine.call;
  RoleWaits waits(call);
  for (;;) {
    const uint32_t token = warp::once(
        [&] { return fetch_add<Order::relaxed, Scope::gpu>(&call.workspace().next_token, 1); });
    if (token >= combine.input().tokens) break;
    const int32_t* const places = combine.params.route.places(token);
    if (!await_sums(combine, waits, places)) return false;
    add_token(combine, mine, token, places);
    warp::sync();
    for (uint32_t link = warp::lane(); link < call.links(); link += kWarpLanes) {
      const Link& from = call.rails.links[link];
      const int32_t place = from.forwards ? places[call.rails.columns.host(from.host)] : -1;
      if (place >= 0)
        mark_read(call, link,
                  call.rails.tables.counts(link).first_in + static_cast<uint64_t>(place));
    }
  }
  waits.add_to(RailStatistics::add_ns);
  return true;
}

TOKENYARD_DEVICE void move(const Combine& combine) {
  const RailCall& call = combine.call;
  // Acquires the words of this host, and the results that they announce.
  if (!warp::all(call.await_epoch(Phase::known, &call.workspace().near))) return;
  const Results mine = Results::mine(combine);
  // Some begin with each, so that neither waits for the other; then all help with what is left.
  if (call.mover() < combine.params.forwarders) {
    if (forward(combine, mine)) add_results(combine, mine);
  } else {
    if (add_results(combine, mine)) forward(combine, mine);
  }
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
  if (!pass_on_greetings(combine.call, {}, false)) return;
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
  CombineTail tail{.ranks = params.combine.call.ranks};
  tail.base = block::shared_tail<RailShared>();
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
                        kThreadsMax)

}  // namespace tokenyard::internode
