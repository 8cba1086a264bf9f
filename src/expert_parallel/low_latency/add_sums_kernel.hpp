/// The receiving blocks of a combine: each finishes tokens of this rank, one after the other.
#pragma once

#include "expert_parallel/low_latency/sums_codecs_kernel.hpp"
#include "expert_parallel/low_latency/take_kernel.hpp"

namespace tokenyard::low_latency {

/// Contributions that a lane holds in registers.
inline constexpr uint32_t kContributionsHeld = 4;
static_assert(kRanksMax <= 256, "a rank is kept in a byte");

/// A token as the lanes of a warp know it, a lane a pick.
struct OwnToken {
  uint32_t token;
  int32_t expert;    ///< of this lane's pick, or -1
  uint32_t rank;     ///< that has it
  WeightedRow row;   ///< if that is this rank
  uint32_t here;     ///< lanes whose picks are here
  uint32_t leads;    ///< lanes that stand for another rank, which sends a row of sums
  uint32_t missing;  ///< lanes whose picks' ranks are masked already

  DEVICE static OwnToken load(const Combine& call, uint32_t token) {
    const CombineParams& params = call.params;
    const uint32_t lane = warp::lane(), self = params.call.rank;
    OwnToken own{.token = token,
                 .expert = -1,
                 .rank = 0,
                 .row = {-1, 0},
                 .here = 0,
                 .leads = 0,
                 .missing = 0};
    const size_t at = size_t{token} * params.topk + lane;
    if (lane < params.topk) own.expert = params.picks[at];
    if (own.expert >= 0) own.rank = static_cast<uint32_t>(own.expert) / params.local_experts;
    if (own.expert >= 0 && own.rank == self)
      own.row = {params.row_slot[size_t{self} * params.tokens_max * params.topk + at],
                 params.weights[at]};
    own.here = warp::ballot(own.row.slot >= 0);
    const bool elsewhere = own.expert >= 0 && own.rank != self;
    const bool open = elsewhere && call.call.open(own.rank);
    const uint32_t same = warp::match(open ? own.rank : kRanksMax + lane);
    own.leads = warp::ballot(open && (same & lanes_below()) == 0);
    own.missing = warp::ballot(elsewhere && !open);
    return own;
  }
  DEVICE uint32_t contributions() const { return population(leads); }
  /// Picks that a sum without the ranks of the `lost` leaders lacks.
  DEVICE uint32_t picks_lost(uint32_t lost) const {
    uint32_t picks = missing;
    for (uint32_t left = lost; left != 0; left &= left - 1) {
      const uint32_t rank_lost = warp::shuffle(rank, first_bit(left));
      picks |= warp::ballot(expert >= 0 && rank == rank_lost);
    }
    return population(picks);
  }
};

/// This lane's piece of a chunk from a rank.
template <class Codec>
DEVICE Peer<Bytes16> staged_sums(const Combine& call, uint32_t source, uint32_t token,
                                 uint32_t chunk) {
  const CallParams& common = call.params.call;
  return common.windows.partial(common.rank, call.call.parity(), source, token) +
         (chunk * Codec::kPiecesAChunk + warp::lane());
}

/// A chunk of a token's contributions.
template <class Codec>
class Contributions {
 public:
  /// By all lanes: loads a piece of each of up to kContributionsHeld of the ranks that `leads`
  /// names, and removes those from it. All loads are under way together.
  DEVICE void load_some(const Combine& call, const OwnToken& own, uint32_t& leads, uint32_t chunk) {
    const bool has_piece = Codec::has_piece(call.params, chunk);
    ranks_ = lanes_ = held_ = 0;
    for (uint32_t i = 0; i < kContributionsHeld; ++i) {
      if (leads == 0) continue;
      const uint32_t lane = first_bit(leads), rank = warp::shuffle(own.rank, lane);
      leads &= leads - 1;
      lanes_ |= lane << 8 * i;
      ranks_ |= rank << 8 * i;
      if (has_piece)
        pieces_[i] =
            load<Order::relaxed, Scope::sys>(staged_sums<Codec>(call, rank, own.token, chunk));
      ++held_;
    }
  }

  /// By all lanes: waits for what load_some did not find. The lanes whose ranks did not send.
  DEVICE uint32_t await_loaded(const Combine& call, const OwnToken& own, uint32_t chunk) {
    uint32_t lost = 0;
    if (!Codec::has_piece(call.params, chunk)) return lost;
    for (uint32_t which = first_missing(); which < held_; which = first_missing()) {
      const uint32_t rank = byte_of(ranks_, which);
      const auto begin = static_cast<uint32_t>(cycles());
      Bytes16 piece{};  // What did not come counts as nothing.
      if (!await_piece(call.call, Phase::combine_partials, rank,
                       staged_sums<Codec>(call, rank, own.token, chunk), piece)) {
        lost |= 1u << byte_of(lanes_, which);
        piece = {};
      }
      for (uint32_t i = 0; i < kContributionsHeld; ++i) replace_if(i == which, pieces_[i], piece);
      if (thread::index() == 0) call.shared.waited[rank] += static_cast<uint32_t>(cycles()) - begin;
    }
    return lost;
  }

  /// By all lanes: adds what was loaded, but for the `lost` lanes' ranks, and empties the places.
  DEVICE void add_to(LaneSums& sums, const Combine& call, const OwnToken& own, uint32_t lost,
                     uint32_t chunk) const {
    const bool has_piece = Codec::has_piece(call.params, chunk);
    for (uint32_t i = 0; i < kContributionsHeld; ++i) {
      if (i >= held_ || (lost >> byte_of(lanes_, i) & 1) != 0) continue;
      Codec::add(sums, pieces_[i]);
      if (has_piece) put_back(staged_sums<Codec>(call, byte_of(ranks_, i), own.token, chunk));
    }
  }

 private:
  DEVICE static uint32_t byte_of(uint32_t bytes, uint32_t i) { return bytes >> 8 * i & 0xff; }

  /// Word by word and without a branch: a compiler that sees one makes an index of the condition,
  /// and keeps in memory what has an index.
  DEVICE static void replace_if(bool condition, Bytes16& piece, const Bytes16& by) {
    for (uint32_t i = 0; i < 4; ++i) piece.word[i] = condition ? by.word[i] : piece.word[i];
  }

  /// Or kContributionsHeld.
  DEVICE uint32_t first_missing() const {
    uint32_t first = kContributionsHeld;
    for (uint32_t i = kContributionsHeld; i-- > 0;)
      if (i < held_ && !has_come(pieces_[i])) first = i;
    return first;
  }

  Bytes16 pieces_[kContributionsHeld] = {};
  uint32_t ranks_ = 0, lanes_ = 0;  ///< packed, as registers are scarce here: a byte each
  uint32_t held_ = 0;
};

/// By the whole block: the leaders that some warp lacks. `turn` counts the block's tokens.
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

/// By the whole block: a token, if need be without some ranks, of all of whose channels the same
/// ones are missing.
template <class Codec>
DEVICE void finish_token(const Combine& call, uint32_t token, uint32_t turn) {
  const CombineParams& params = call.params;
  const OwnToken own = OwnToken::load(call, token);
  const uint32_t chunks = params.chunks();
  // Mostly a warp has one chunk and few ranks: then nothing is read twice.
  const bool holds = chunks <= warp::count() && own.contributions() <= kContributionsHeld;
  LaneSums own_sums;
  Contributions<Codec> contributions;
  uint32_t lacks = 0;
  for (uint32_t chunk = warp::index(); chunk < chunks; chunk += warp::count()) {
    const uint32_t piece = chunk * kWarpLanes + warp::lane();
    if (holds) add_rows(call, own_sums, own.row, own.here, 0, piece);
    for (uint32_t left = own.leads; left != 0;) {
      contributions.load_some(call, own, left, chunk);
      lacks |= contributions.await_loaded(call, own, chunk);
    }
  }
  const uint32_t lost = vote(call, warp::bit_or(lacks), turn);
  for (uint32_t chunk = warp::index(); chunk < chunks; chunk += warp::count()) {
    const uint32_t piece = chunk * kWarpLanes + warp::lane();
    LaneSums sums = own_sums;
    if (!holds) add_rows(call, sums, own.row, own.here, 0, piece);
    for (uint32_t left = own.leads; left != 0;) {
      if (holds)
        left = 0;
      else
        contributions.load_some(call, own, left, chunk);  // All there, or lost.
      contributions.add_to(sums, call, own, lost, chunk);
    }
    if (piece < params.pieces)
      store_vector(reinterpret_cast<Bytes16*>(params.out) + size_t{token} * params.pieces + piece,
                   sums.rounded());
  }
  const uint32_t picks_lost = own.picks_lost(lost);
  if (params.lost != nullptr && thread::index() == 0)
    params.lost[token] = static_cast<int32_t>(picks_lost);
}

/// By a whole receiving block.
template <class Codec>
DEVICE void receive_combine(const Combine& call) {
  const CombineParams& params = call.params;
  const uint32_t senders = sends(params.call.part) ? params.call.send_blocks : 0;
  const uint32_t receivers = grid::blocks() - senders;
  if (thread::index() == 0) call.shared.lost[0] = 0;
  for (uint32_t rank = thread::index(); rank < params.call.ranks; rank += block::threads())
    call.shared.waited[rank] = 0;
  block::sync();
  uint32_t turn = 0;
  for (uint32_t token = block::index() - senders; token < params.tokens; token += receivers)
    finish_token<Codec>(call, token, turn++);
  if (params.waited == nullptr) return;
  block::sync();
  // Relaxed: sums that the host reads after the kernel.
  for (uint32_t rank = thread::index(); rank < params.call.ranks; rank += block::threads())
    add<Order::relaxed, Scope::gpu>(params.waited + rank, call.shared.waited[rank]);
}

}  // namespace tokenyard::low_latency
