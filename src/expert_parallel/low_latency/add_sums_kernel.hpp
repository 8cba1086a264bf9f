/// The receiving blocks of a combine: each finishes tokens of this rank, one after the other.
#pragma once

#include "expert_parallel/low_latency/sums_codecs_kernel.hpp"
#include "expert_parallel/low_latency/take_kernel.hpp"

namespace tokenyard::low_latency {

/// Shares of a sum that a lane holds in registers.
inline constexpr uint32_t kSharesHeld = 4;

/// A lane's pick of one of this rank's tokens, as memory has it.
struct OwnPick {
  int32_t expert = -1;                       ///< or -1
  WeightedRow row{.slot = -1, .weight = 0};  ///< if the expert is here

  /// Nothing is asked of what is loaded: it may still be on its way.
  DEVICE static OwnPick load(const Combine& call, uint32_t token) {
    const CombineParams& params = call.params;
    const uint32_t lane = warp::lane();
    if (token >= params.tokens || lane >= params.topk) return {};
    const size_t own_tokens = size_t{params.call.rank} * params.tokens_max;
    const size_t at = size_t{token} * params.topk + lane;
    return {.expert = params.picks[at],
            .row = {params.row_slot[own_tokens * params.topk + at], params.weights[at]}};
  }
};

/// By all lanes of one warp, for the block: what its warps would find out one by one.
DEVICE void plan_token(const Combine& call, uint32_t token, const OwnPick& pick, TokenPlan& plan) {
  const uint32_t lane = warp::lane(), self = call.params.call.rank;
  const bool picks = pick.expert >= 0;
  const uint32_t rank =
      picks ? call.params.by.local_experts.quotient(static_cast<uint32_t>(pick.expert)) : self;
  const bool here = pick.row.slot >= 0, open = rank != self && call.call.open(rank);
  // Lanes that have no share must match with nobody.
  const uint32_t same = warp::match(open ? rank : kRanksMax + lane);
  const bool leads = open && (same & lanes_below()) == 0;
  const uint32_t rows = warp::ballot(here), shares = warp::ballot(leads);
  const uint32_t missing = warp::ballot(rank != self && !open);
  if (here) plan.row[population(rows & lanes_below())] = pick.row;
  if (leads)
    plan.share[population(shares & lanes_below())] = {
        call.params.call.windows.partial_here(call.call.parity(), rank, token), rank,
        population(same)};
  if (lane != 0) return;
  plan.rows = population(rows);
  plan.shares = population(shares);
  plan.missing = population(missing);
}

/// A chunk of a token's shares, a few of them at a time.
template <class Codec>
class Shares {
 public:
  DEVICE Shares(const Combine& call, const TokenPlan& plan) : call_(call), plan_(plan) {}

  /// By all lanes: a piece of each of up to kSharesHeld shares from `first` on. All loads are under
  /// way together.
  DEVICE void load_from(uint32_t first, uint32_t chunk) {
    first_ = first;
    place_ = chunk * Codec::kPiecesAChunk + warp::lane();
    held_ = Codec::has_piece(call_.params, chunk)
                ? std::min(plan_.shares - first, uint32_t{kSharesHeld})
                : 0;
    UNROLL for (uint32_t i = 0; i < kSharesHeld; ++i) if (i < held_) pieces_[i] = look(i);
  }

  /// By all lanes: waits for what load_from did not find. The shares that did not come, as bits.
  DEVICE uint32_t await_loaded() {
    uint32_t lost = 0;
    KEEP_ROLLED for (uint32_t i = first_missing(); i < held_; i = first_missing()) {
      const uint32_t rank = plan_.share[first_ + i].rank;
      const auto begin = static_cast<uint32_t>(cycles());
      const bool come =
          call_.call.await(Phase::combine_partials, rank, call_.call.epoch(), [&](uint64_t&) {
            look_again();
            return first_missing() != i;
          });
      if (!come) {
        lost |= 1u << (first_ + i);
        // What did not come counts as nothing.
        UNROLL for (uint32_t j = 0; j < kSharesHeld; ++j) replace_if(j == i, pieces_[j], Bytes16{});
      }
      if (thread::index() == 0)
        call_.shared.waited[rank] += static_cast<uint32_t>(cycles()) - begin;
    }
    return lost;
  }

  /// By all lanes: adds what was loaded, but for the `lost` shares, and empties the places.
  DEVICE void add_to(LaneSums& sums, uint32_t lost) const {
    UNROLL for (uint32_t i = 0; i < kSharesHeld; ++i) {
      // All lanes add, since a codec's may need one another.
      if (first_ + i >= plan_.shares || (lost >> (first_ + i) & 1) != 0) continue;
      Codec::add(sums, pieces_[i]);
      if (i < held_) put_back(staged(i));
    }
  }

 private:
  /// This lane's piece of the chunk, from the rank of a share.
  DEVICE Peer<Bytes16> staged(uint32_t i) const { return plan_.share[first_ + i].staged + place_; }
  /// Relaxed: sixteen bytes are their own flag.
  DEVICE Bytes16 look(uint32_t i) const { return load<Order::relaxed, Scope::sys>(staged(i)); }
  /// For all that are missing, so that none is waited for longer than it takes to come.
  DEVICE void look_again() {
    UNROLL for (uint32_t i = 0; i < kSharesHeld; ++i) if (i < held_ && !has_come(pieces_[i]))
        pieces_[i] = look(i);
  }

  /// Word by word and without a branch: a compiler that sees one makes an index of the condition,
  /// and keeps in memory what has an index.
  DEVICE static void replace_if(bool condition, Bytes16& piece, const Bytes16& by) {
    for (uint32_t i = 0; i < 4; ++i) piece.word[i] = condition ? by.word[i] : piece.word[i];
  }

  /// Or kSharesHeld.
  DEVICE uint32_t first_missing() const {
    uint32_t first = kSharesHeld;
    UNROLL for (uint32_t i = kSharesHeld; i-- > 0;) if (i < held_ && !has_come(pieces_[i])) first =
        i;
    return first;
  }

  const Combine& call_;
  const TokenPlan& plan_;
  Bytes16 pieces_[kSharesHeld] = {};
  uint32_t first_ = 0, held_ = 0;  ///< shares of which this lane has a piece
  uint32_t place_ = 0;             ///< this lane's in a staged row
};

/// By the whole block: the shares that some warp lacks. `turn` counts the block's tokens.
DEVICE uint32_t vote(const Combine& call, uint32_t lacks, uint32_t turn) {
  // The next turn's word is readied now: nobody can be there yet, and nobody still looks at the
  // turn before the last, which had that word.
  uint32_t* const word = &call.shared.lost[turn % 3];
  if (thread::index() == 0) call.shared.lost[(turn + 1) % 3] = 0;
  if (!block::any(lacks != 0)) return 0;
  if (lacks != 0) fetch_or<Order::relaxed, Scope::block>(word, lacks);
  block::sync();
  return *word;
}

/// By all lanes: a chunk of a token's result.
DEVICE void store_sums(const Combine& call, uint32_t token, uint32_t piece, const LaneSums& sums) {
  const uint32_t pieces = call.params.pieces;
  if (piece < pieces)
    store_vector(reinterpret_cast<Bytes16*>(call.params.out) + size_t{token} * pieces + piece,
                 sums.rounded());
}

/// One of the block's tokens, and the one after it.
struct Turn {
  uint32_t number, token, next_token;
  const TokenPlan& plan;
  TokenPlan& next_plan;
};

/// By the warp that plans for the block, before the vote, after which all go on to the next token.
/// The plan of the turn before the last, which has the same place, nobody reads any more.
DEVICE void plan_next(const Combine& call, const Turn& turn, const OwnPick& next) {
  if (warp::index() == warp::count() - 1) plan_token(call, turn.next_token, next, turn.next_plan);
}

/// By the whole block: a token, if need be without some ranks, of all of whose channels the same
/// ones are missing. No warp has more than a chunk of it, and there are few shares, so that nothing
/// is read twice. The shares that were lost.
template <class Codec>
DEVICE uint32_t finish_at_once(const Combine& call, const Turn& turn, const OwnPick& next) {
  const uint32_t chunk = warp::index(), piece = chunk * kWarpLanes + warp::lane();
  const bool has_chunk = chunk < call.params.chunks();
  LaneSums sums;
  Shares<Codec> shares(call, turn.plan);
  if (has_chunk) {
    shares.load_from(0, chunk);  // On their way while own rows are added.
    add_rows(call, sums, turn.plan, piece);
  }
  plan_next(call, turn, next);
  const uint32_t lacks = has_chunk ? shares.await_loaded() : 0;
  const uint32_t lost = vote(call, warp::bit_or(lacks), turn.number);
  if (has_chunk) {
    shares.add_to(sums, lost);
    store_sums(call, turn.token, piece, sums);
  }
  return lost;
}

/// The same for any number of chunks and shares: everything is awaited before the vote, and read
/// again after it.
template <class Codec>
DEVICE uint32_t finish_in_turns(const Combine& call, const Turn& turn, const OwnPick& next) {
  const uint32_t chunks = call.params.chunks(), count = turn.plan.shares;
  Shares<Codec> shares(call, turn.plan);
  uint32_t lacks = 0;
  KEEP_ROLLED for (uint32_t chunk = warp::index(); chunk < chunks; chunk += warp::count()) {
    KEEP_ROLLED for (uint32_t first = 0; first < count; first += kSharesHeld) {
      shares.load_from(first, chunk);
      lacks |= shares.await_loaded();
    }
  }
  plan_next(call, turn, next);
  const uint32_t lost = vote(call, warp::bit_or(lacks), turn.number);
  KEEP_ROLLED for (uint32_t chunk = warp::index(); chunk < chunks; chunk += warp::count()) {
    const uint32_t piece = chunk * kWarpLanes + warp::lane();
    LaneSums sums;
    add_rows(call, sums, turn.plan, piece);
    KEEP_ROLLED for (uint32_t first = 0; first < count; first += kSharesHeld) {
      shares.load_from(first, chunk);  // All there, or lost.
      shares.add_to(sums, lost);
    }
    store_sums(call, turn.token, piece, sums);
  }
  return lost;
}

/// By one thread: picks that the sum lacks.
DEVICE void tell_lost(const Combine& call, const Turn& turn, uint32_t lost) {
  uint32_t picks = turn.plan.missing;
  KEEP_ROLLED for (; lost != 0; lost &= lost - 1) picks += turn.plan.share[first_bit(lost)].picks;
  call.params.lost[turn.token] = static_cast<int32_t>(picks);
}

template <class Codec>
DEVICE void finish_token(const Combine& call, const Turn& turn, const OwnPick& next) {
  const bool at_once = call.params.chunks() <= warp::count() && turn.plan.shares <= kSharesHeld;
  const uint32_t lost =
      at_once ? finish_at_once<Codec>(call, turn, next) : finish_in_turns<Codec>(call, turn, next);
  if (call.params.lost != nullptr && thread::index() == 0) tell_lost(call, turn, lost);
}

/// By a whole receiving block. Its last warp knows two tokens ahead what the block needs.
template <class Codec>
DEVICE void receive_combine(const Combine& call) {
  const CombineParams& params = call.params;
  CombineShared& shared = call.shared;
  const uint32_t senders = sends(params.call.part) ? params.call.send_blocks : 0;
  const uint32_t receivers = grid::blocks() - senders, first = block::index() - senders;
  const bool plans = warp::index() == warp::count() - 1;
  OwnPick next = plans ? OwnPick::load(call, first) : OwnPick{};
  if (thread::index() == 0) shared.lost[0] = 0;
  for (uint32_t rank = thread::index(); rank < params.call.ranks; rank += block::threads())
    shared.waited[rank] = 0;
  // The warp that plans looks at ranks as well: at all of them, if it has the lanes.
  const bool knows_early = params.call.ranks <= kWarpLanes;
  const auto plan_first = [&] {
    if (!plans) return;
    plan_token(call, first, next, shared.plans[0]);
    next = OwnPick::load(call, first + receivers);
  };
  open_call(call.call, false, [&] {
    if (knows_early) plan_first();
  });
  if (!knows_early) {
    plan_first();
    block::sync();
  }
  uint32_t number = 0;
  KEEP_ROLLED for (uint32_t token = first; token < params.tokens; token += receivers, ++number) {
    const Turn turn{number, token, token + receivers, shared.plans[number % 3],
                    shared.plans[(number + 1) % 3]};
    const OwnPick pick = next;
    if (plans) next = OwnPick::load(call, token + 2 * receivers);
    finish_token<Codec>(call, turn, pick);
  }
  if (params.waited == nullptr) return;
  block::sync();
  // Relaxed: sums that the host reads after the kernel.
  for (uint32_t rank = thread::index(); rank < params.call.ranks; rank += block::threads())
    add<Order::relaxed, Scope::gpu>(params.waited + rank, shared.waited[rank]);
}

}  // namespace tokenyard::low_latency
