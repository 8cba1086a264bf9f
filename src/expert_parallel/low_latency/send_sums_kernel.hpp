/// The sending blocks of a combine: weights to everybody, unless the dispatch has told them, then
/// sums of this rank's experts' rows to the owners of the tokens.
#pragma once

#include "expert_parallel/low_latency/call_kernel.hpp"
#include "expert_parallel/low_latency/sums_codecs_kernel.hpp"

namespace tokenyard::low_latency {

DEVICE float load_weight(const CombineParams& params, uint32_t index) {
  return index < params.tokens * params.topk ? load_cached(params.weights + index) : 0;
}

/// The first of a sending block's destinations, counted from the next rank. The last blocks begin:
/// of few tokens they have none to sum. But the very last may have to speak for the rank before.
DEVICE uint32_t first_weights(const CombineParams& params) {
  const uint32_t last = params.call.send_blocks - 1;
  return block::index() == last ? last : last - 1 - block::index();
}

/// The weights that a block tells, to every so many ranks. A warp that looks at ranks tells the
/// first of them itself, before the block meets, since others wait for them; the block tells the
/// rest. What leaves first is loaded, and its place found, before the block may send.
class LeavingWeights {
 public:
  DEVICE static LeavingWeights load(const Combine& call) {
    const CombineParams& params = call.params;
    LeavingWeights made;
    made.turn_ = first_weights(params);
    const bool tells = !params.told && made.turn_ + 1 < params.call.ranks;
    made.count_ = tells ? params.tokens * params.topk : 0;
    if (made.count_ == 0) return made;
    if (warp_looks(params.call)) made.first_ = load_weight(params, warp::lane());
    UNROLL for (uint32_t i = 0; i < kHeld; ++i) made.rest_[i] =
        load_weight(params, kWarpLanes + i * block::threads() + thread::index());
    return made;
  }
  /// By a warp that looks, while its looks are under way.
  DEVICE void find_place(const Combine& call) {
    if (count_ == 0 || !warp_looks(call.params.call)) return;
    const uint32_t destination = rank_after(call.params.call, 1 + turn_);
    if (warp_looks_at(destination)) destination_ = destination;
    to_ = settled(place(call, destination) + warp::lane());
  }
  /// By all lanes of a warp that looks.
  DEVICE void send_first(const Combine& call) const {
    if (warp::lane() >= count_) return;
    if (destination_ != kRanksMax && call.call.open(destination_))
      tell_weight(to_, call.dispatched, first_);
    for_more(call, [&](uint32_t destination) {
      if (warp_looks_at(destination) && call.call.open(destination))
        tell_weight(place(call, destination) + warp::lane(), call.dispatched, first_);
    });
  }
  /// By the whole block.
  DEVICE void send_rest(const Combine& call) const {
    if (kWarpLanes >= count_) return;
    const auto send = [&](uint32_t destination) {
      if (!call.call.open(destination)) return;
      const Peer<Stamped> to = place(call, destination);
      uint32_t at = kWarpLanes + thread::index();
      UNROLL for (uint32_t i = 0; i < kHeld; ++i, at += block::threads()) {
        if (at < count_) tell_weight(to + at, call.dispatched, rest_[i]);
      }
      KEEP_ROLLED for (; at < count_; at += block::threads())
          tell_weight(to + at, call.dispatched, load_weight(call.params, at));
    };
    send(rank_after(call.params.call, 1 + turn_));
    for_more(call, send);
  }

 private:
  DEVICE static Peer<Stamped> place(const Combine& call, uint32_t destination) {
    const CallParams& common = call.params.call;
    return common.windows.weights(destination, call.params.batch, common.rank);
  }
  /// `send(destination)` for all but the first, which only few blocks have.
  template <class Send>
  DEVICE void for_more(const Combine& call, Send send) const {
    const CallParams& common = call.params.call;
    KEEP_ROLLED for (uint32_t turn = turn_ + common.send_blocks; turn + 1 < common.ranks;
                     turn += common.send_blocks) send(rank_after(common, 1 + turn));
  }

  static constexpr uint32_t kHeld = 3;  ///< of the rest, that a thread loads at once

  uint32_t turn_ = 0, count_ = 0;     ///< of the first destination; weights to each
  uint32_t destination_ = kRanksMax;  ///< the first, if this warp looks at it
  float first_ = 0, rest_[kHeld] = {};
  Peer<Stamped> to_;
};

/// A token of another rank: all tokens 0 first, then all tokens 1, beginning with another rank each
/// time, so that no destination is everybody's first.
struct OthersToken {
  uint32_t source, token;

  DEVICE static uint32_t count(const CombineParams& params) {
    return (params.call.ranks - 1) * params.tokens_max;
  }
  DEVICE static OthersToken at(const CombineParams& params, uint32_t position) {
    const Divisor& others = params.by.others;
    const uint32_t token = others.quotient(position), turn = position + token;
    return {rank_after(params.call, 1 + others.remainder(turn, others.quotient(turn))), token};
  }
};

/// Tokens of other ranks whose rows a warp plans for the block, a lane a pick: as many as fit. They
/// follow one another as far apart as there are streams.
struct TokenGroup {
  OthersToken of;  ///< of this lane's pick
  int32_t slot;    ///< of its row, or -1
  /// Its weight as it lay there before it was needed, if this rank has told its own in the
  /// dispatch: the others mostly have as well, and their numbers for a batch are mostly this
  /// rank's.
  Stamped early;

  DEVICE static uint32_t tokens(const CombineParams& params) {
    return params.by.topk.quotient(kWarpLanes);
  }
  /// Of the lane's pick: its token's place in the group.
  DEVICE static uint32_t token_of_lane(const CombineParams& params) {
    return params.by.topk.quotient(warp::lane());
  }

  /// By all lanes. `base`: position of the first token. Nothing is asked of what is loaded.
  DEVICE static TokenGroup at(const CombineParams& params, uint32_t base) {
    const uint32_t which = token_of_lane(params);
    const uint32_t position = base + which * params.streams;
    if (which >= tokens(params) || position >= OthersToken::count(params)) return none();
    const OthersToken of = OthersToken::at(params, position);
    const size_t at = size_t{of.source} * params.tokens_max + of.token;
    const uint32_t pick = params.by.topk.remainder(warp::lane(), which);
    TokenGroup made{of, load_cached(params.row_slot + at * params.topk + pick), {}};
    if (params.told) made.early = look_at(made.weight_here(params, params.batch));
    return made;
  }
  DEVICE static TokenGroup none() { return {{0, 0}, -1, {}}; }

  /// By one lane with a row: its weight, once the owner has told it. False if the owner is masked.
  /// Which number the owner has for the batch is not known here: its word is where the epoch is.
  DEVICE bool await_weight(const Combine& call, float& weight) const {
    const CombineParams& params = call.params;
    if (!call.call.open(of.source)) return false;
    if (params.told && early.epoch == call.dispatched) {
      weight = std::bit_cast<float>(early.value);
      return true;
    }
    const Peer<Stamped> first = weight_here(params, 0), second = weight_here(params, 1);
    return call.call.await(Phase::combine_weights, of.source, call.dispatched, [&](uint64_t& seen) {
      const Stamped one = look_at(first), other = look_at(second);
      const Stamped told = one.epoch == call.dispatched ? one : other;
      weight = std::bit_cast<float>(told.value);
      seen = std::max(one.epoch, other.epoch);
      return told.epoch == call.dispatched;
    });
  }

  /// By all lanes: the group's rows, in the order of tokens and of their picks, without weights.
  DEVICE void plan(const Combine& call, PlannedGroup& planned) const {
    const CombineParams& params = call.params;
    const uint32_t lives = warp::ballot(slot >= 0);
    if (warp::lane() == 0) planned.rows = population(lives);
    if (slot < 0) return;
    const CallParams& common = params.call;
    PlannedRow& row = planned.row[population(lives & lanes_below())];
    const bool ends = (lives & of_token(params) & lanes_above()) == 0;
    row.slot = slot | (ends ? PlannedRow::kEnds : 0);
    if (ends)
      row.home = common.windows.partial(of.source, call.call.parity(), common.rank, of.token);
  }
  /// By all lanes, later: their weights. A token whose owner is masked goes nowhere.
  DEVICE void weigh(const Combine& call, PlannedGroup& planned) const {
    float weight = 0;
    const uint32_t lives = warp::ballot(slot >= 0);
    const uint32_t unknown = warp::ballot(slot >= 0 && !await_weight(call, weight));
    if (slot < 0) return;
    PlannedRow& row = planned.row[population(lives & lanes_below())];
    row.weight = weight;
    if ((unknown & of_token(call.params)) != 0) row.home = Peer<Bytes16>();
  }

 private:
  /// This lane's pick's, by the owner's number for the batch.
  DEVICE Peer<Stamped> weight_here(const CombineParams& params, uint32_t batch) const {
    const uint32_t pick = params.by.topk.remainder(warp::lane(), token_of_lane(params));
    return params.call.windows.weights_here(batch, of.source, of.token) + pick;
  }
  DEVICE static Stamped look_at(Peer<Stamped> weight) {
    return load<Order::relaxed, Scope::sys>(weight);  // Relaxed: a word is all there is to see.
  }
  /// The lanes of this lane's token.
  DEVICE static uint32_t of_token(const CombineParams& params) {
    return ((1u << params.topk) - 1) << token_of_lane(params) * params.topk;
  }
  DEVICE static uint32_t lanes_above() { return ~lanes_below() << 1; }
};

/// The tokens that a block sums, some of them at a time: a group for each warp. The last warp,
/// which looks at ranks meanwhile, has one only where there are many.
struct Round {
  uint32_t first;  ///< position of the first token

  /// Of a block that has a part of each of a stream's tokens. None: it has no stream.
  DEVICE static Round of_stream(const CombineParams& params, uint32_t stream, uint32_t part) {
    return {part < params.parts ? stream : OthersToken::count(params)};
  }
  /// From the first token of a group to that of the next.
  DEVICE static uint32_t stride(const CombineParams& params) {
    return TokenGroup::tokens(params) * params.streams;
  }
  DEVICE bool there_is(const CombineParams& params) const {
    return first < OthersToken::count(params);
  }
  DEVICE Round next(const CombineParams& params) const {
    return {first + warp::count() * stride(params)};
  }
  /// Whether this warp has a group to plan.
  DEVICE bool has_group(const CombineParams& params) const {
    return position_of_warp(params) < OthersToken::count(params);
  }
  /// By all lanes.
  DEVICE TokenGroup group_of_warp(const CombineParams& params) const {
    return has_group(params) ? TokenGroup::at(params, position_of_warp(params))
                             : TokenGroup::none();
  }
  /// Groups that hold a token.
  DEVICE uint32_t groups(const CombineParams& params) const {
    uint32_t groups = 0;
    KEEP_ROLLED for (uint32_t at = first; groups < warp::count() && at < OthersToken::count(params);
                     at += stride(params))++ groups;
    return groups;
  }

 private:
  DEVICE uint32_t position_of_warp(const CombineParams& params) const {
    return first + warp::index() * stride(params);
  }
};

/// What a warp has in hand of a round: some rows of a group, this lane's pieces of each, and the
/// sums of the token that they belong to.
template <class Codec>
class RowsInHand {
 public:
  static constexpr uint32_t kAtOnce = Codec::kRowsAtOnce, kChunks = Codec::kSpanChunks;

  DEVICE RowsInHand(const Combine& call, uint32_t part, uint32_t groups)
      : call_(call),
        groups_(groups),
        span_(warp::index() * call.params.parts + part),
        y_(call.params, span_) {}
  DEVICE bool there_are() const { return span_ < call_.params.spans && groups_ != 0; }

  /// By all lanes: they are on their way.
  DEVICE void load() {
    const PlannedGroup& group = call_.shared.groups[group_];
    const uint32_t count = group.rows;
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      UNROLL for (uint32_t c = 0; c < kChunks; ++c) {
        if (first_ + i >= count || !y_.there_is(c)) continue;
        rows_[i].of[c] = y_.load(group.row[first_ + i].slot & ~PlannedRow::kEnds, c);
      }
    }
  }
  /// By all lanes: adds them, in their order, and sends the sums that are complete.
  DEVICE void add() {
    const PlannedGroup& group = call_.shared.groups[group_];
    const uint32_t count = group.rows;
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (first_ + i >= count) continue;
      const PlannedRow row = group.row[first_ + i];
      sums_.add(rows_[i], row.weight);
      if ((row.slot & PlannedRow::kEnds) != 0) send(row.home);
    }
  }
  DEVICE void advance() {
    first_ += kAtOnce;
    if (first_ < call_.shared.groups[group_].rows) return;
    first_ = 0;
    if (++group_ < groups_) return;
    group_ = 0;
    span_ += warp::count() * call_.params.parts;
    y_ = PiecesOfRows<kChunks>(call_.params, span_);
    // A scale is that of all lanes. Those without channels in this span, which load nothing, must
    // hold nothing of the last one.
    if constexpr (Codec::kLanesShareScales) {
      UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) rows_[i] = SpanPieces<kChunks>();
    }
  }

 private:
  /// By all lanes: the sums go home, if anybody wants them, and begin anew.
  DEVICE void send(Peer<Bytes16> home) {
    UNROLL for (uint32_t c = 0; c < kChunks; ++c) {
      const uint32_t chunk = span_ * kChunks + c;
      const Bytes16 staged = Codec::encode(sums_.of[c]);
      // Relaxed: sixteen bytes are their own flag.
      if (home && Codec::has_piece(call_.params, chunk))
        store<Order::relaxed, Scope::sys>(home + (chunk * Codec::kPiecesAChunk + warp::lane()),
                                          staged);
    }
    sums_ = SpanSums<kChunks>();
  }

  const Combine& call_;
  const uint32_t groups_;
  uint32_t span_, group_ = 0, first_ = 0;
  PiecesOfRows<kChunks> y_;
  SpanPieces<kChunks> rows_[kAtOnce];
  SpanSums<kChunks> sums_;
};

/// By a whole sending block, which meets. What it needs first is on its way here while it learns
/// whether it may send, and the first rows are while it learns their weights.
template <class Codec>
DEVICE void send_combine(const Combine& call) {
  const CombineParams& params = call.params;
  // Who tells weights alone writes no staging, and needs no room.
  const bool sums = block::index() < params.call.staging_blocks;
  const Look look = Look::first(call.call, sums);
  LeavingWeights weights = LeavingWeights::load(call);
  weights.find_place(call);
  PlannedGroup& planned = call.shared.groups[warp::index()];
  const uint32_t part = params.by.streams.quotient(block::index());
  Round round = Round::of_stream(params, params.by.streams.remainder(block::index(), part), part);
  TokenGroup group = round.group_of_warp(params);
  if (round.has_group(params)) group.plan(call, planned);
  open_call(call.call, look, sums, [&] { weights.send_first(call); });
  weights.send_rest(call);
  KEEP_ROLLED while (round.there_is(params)) {
    RowsInHand<Codec> rows(call, part, round.groups(params));
    if (rows.there_are()) rows.load();
    if (round.has_group(params)) group.weigh(call, planned);
    block::sync();
    round = round.next(params);
    group = round.group_of_warp(params);
    KEEP_ROLLED while (rows.there_are()) {
      rows.add();
      rows.advance();
      if (rows.there_are()) rows.load();
    }
    if (!round.there_is(params)) break;
    block::sync();  // All have read what the round before was.
    if (round.has_group(params)) group.plan(call, planned);
    block::sync();
  }
  advance_epoch(call.call);
}

}  // namespace tokenyard::low_latency
