/// The sending blocks of a combine: weights to everybody, unless the dispatch has told them, then
/// sums of this rank's experts' rows to the owners of the tokens. Nothing waits for the block until
/// weights have left and the first rows are on their way: a warp finds out by itself what its
/// share of a token is made of. A row that is alone, the only one here of its token, is no sum: it
/// goes as it is, its owner weighs it, and so it need not wait for its weight.
#pragma once

#include "expert_parallel/low_latency/kernels/call_kernel.hpp"
#include "expert_parallel/low_latency/kernels/sums_codecs_kernel.hpp"

namespace tokenyard::low_latency {

DEVICE float load_weight(const CombineParams& params, uint32_t index) {
  return index < params.tokens * params.topk ? load_cached(params.weights + index) : 0;
}

/// The first of a sending block's destinations, counted from the next rank. The last blocks begin:
/// of few tokens they have none to sum. But the very last may have to speak for the rank.
DEVICE uint32_t first_weights(const CombineParams& params) {
  const uint32_t last = params.call.send_blocks - 1;
  return block::index() == last ? last : last - 1 - block::index();
}

/// This rank's weights, as a sending block tells them to every so many ranks. They need no room,
/// and others wait for them: so each thread asks for itself whether a rank is masked, and knows
/// where the first destination's lie before it may ask.
class LeavingWeights {
 public:
  DEVICE explicit LeavingWeights(const CombineParams& params)
      : turn_(first_weights(params)), to_(settled(place(params, turn_))) {}

  /// By the whole block.
  DEVICE void publish(const Combine& call) const {
    const CallParams& common = call.params.call;
    if (turn_ + 1 >= common.ranks) return;
    publish(call, turn_, to_);
    KEEP_ROLLED for (uint32_t turn = turn_ + common.send_blocks; turn + 1 < common.ranks;
                     turn += common.send_blocks) publish(call, turn, place(call.params, turn));
  }

 private:
  DEVICE static Peer<Stamped> place(const CombineParams& params, uint32_t turn) {
    const CallParams& common = params.call;
    if (turn + 1 >= common.ranks) return {};
    return common.windows.weights(rank_after(common, 1 + turn), params.batch, common.rank);
  }
  DEVICE static void publish(const Combine& call, uint32_t turn, Peer<Stamped> to) {
    constexpr uint32_t kHeld = 3;  // At once: who loads one after the other waits for each.
    const CombineParams& params = call.params;
    const uint32_t destination = rank_after(params.call, 1 + turn);
    const uint32_t count = params.tokens * params.topk;
    const Look look = Look::at(call.call, destination, false);
    const bool open = params.call.active.contains(destination);
    KEEP_ROLLED for (uint32_t first = thread::index(); first < count;
                     first += kHeld * block::threads()) {
      float held[kHeld];
      UNROLL for (uint32_t i = 0; i < kHeld; ++i) held[i] =
          load_weight(params, first + i * block::threads());
      if (look.closed_to_sends(call.call) || !open) break;
      UNROLL for (uint32_t i = 0; i < kHeld; ++i) {
        const uint32_t at = first + i * block::threads();
        if (at < count) publish_weight(to + at, call.dispatched, held[i]);
      }
    }
  }

  uint32_t turn_;
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

/// Tokens of other ranks that a warp plans, a lane a pick: as many as fit. They follow one another
/// as far apart as there are streams.
class TokenGroup {
 public:
  /// From the first token of a group to that of the next.
  DEVICE static uint32_t stride(const CombineParams& params) {
    return tokens(params) * params.streams;
  }

  TokenGroup() = default;
  /// By all lanes: where its picks lie, which the launch tells. `base`: position of the first
  /// token.
  DEVICE TokenGroup(const CombineParams& params, uint32_t base) {
    const uint32_t which = params.by.topk.quotient(warp::lane());
    const uint32_t position = base + which * params.streams;
    if (which >= tokens(params) || position >= OthersToken::count(params)) return;
    const CallParams& common = params.call;
    const OthersToken of = OthersToken::at(params, position);
    const size_t at = size_t{of.source} * params.tokens_max + of.token;
    const uint32_t choice = params.by.topk.remainder(warp::lane(), which);
    source_ = settled(of.source);
    token_ = settled(of.token);
    slot_at_ = settled(params.row_slot + at * params.topk + choice);
    early_at_ = settled(common.windows.weights_here(params.batch, of.source, of.token) + choice);
    for (uint32_t parity = 0; parity < 2; ++parity)
      home_[parity] = settled(common.windows.partial(of.source, parity, common.rank, of.token));
    lanes_of_token_ = settled(((1u << params.topk) - 1) << which * params.topk);
  }
  /// By all lanes. Nothing is asked of what is loaded.
  DEVICE void fetch() {
    if (slot_at_ == nullptr) return;
    slot_ = load_cached(slot_at_);
    early_ = look_at(early_at_);
  }

  /// By all lanes: the group's rows, in the order of tokens and of their picks, with the weights
  /// that are here. If some are not and it `hurries`, a row that is alone comes first.
  DEVICE void plan(const Combine& call, PlannedGroup& planned, bool hurries) {
    const uint32_t all = warp::ballot(has_row());
    const bool waits = has_row() && !is_alone(all) && early_.epoch != call.dispatched;
    weighed_ = !warp::any(waits);
    hoisted_ = 0;
    if (hurries && !weighed_) hoisted_ = lowest_bit(warp::ballot(is_alone(all)));
    if (hurries) {
      const uint32_t of_first = warp::shuffle(lanes_of_token_, first_bit(all | 1u << 31));
      first_rows_ = hoists() ? 1 : population(all & of_first);
    }
    if (warp::lane() == 0) planned.rows = population(all);
    if (has_row()) {
      PlannedRow& row = planned.row[place(all)];
      const bool ends = (all & lanes_of_token_ & lanes_above()) == 0;
      row.slot = slot_ | (ends ? PlannedRow::kEnds : 0);
      row.weight = is_alone(all) ? 1 : std::bit_cast<float>(early_.value);
      if (ends) row.home = call.call.parity() == 0 ? home_[0] : home_[1];
    }
    warp::sync();
  }
  /// Whether all weights that it needs are in the plan.
  DEVICE bool is_weighed() const { return weighed_; }
  /// Whether the first row planned is one that is alone, while others wait for weights.
  DEVICE bool hoists() const { return hoisted_ != 0; }
  /// How many of the planned rows make the first sum, of a group that hurries.
  DEVICE uint32_t first_rows() const { return first_rows_; }
  /// By all lanes, when the block knows with whom it speaks: awaits the weights that were not here.
  /// A token whose owner is masked goes nowhere. Not of a group of which something has left but the
  /// row that it hoists: who has a token's sums may tell the next weights in their place.
  DEVICE void weigh(const Combine& call, PlannedGroup& planned) {
    float weight = 1;
    const uint32_t all = warp::ballot(has_row());
    bool known = true;
    if (has_row()) known = is_alone(all) ? call.call.open(source_) : await_weight(call, weight);
    const uint32_t unknown = warp::ballot(!known);
    if (has_row()) {
      PlannedRow& row = planned.row[place(all)];
      row.weight = weight;
      if ((unknown & lanes_of_token_) != 0) row.home = Peer<Bytes16>();
    }
    weighed_ = true;
    warp::sync();
  }

 private:
  DEVICE bool has_row() const { return slot_ >= 0; }
  /// Whether this lane has a row, and the only one of its token. `all`: the lanes with rows, as
  /// bits.
  DEVICE bool is_alone(uint32_t all) const {
    const uint32_t of_token = all & lanes_of_token_;
    return has_row() && (of_token & (of_token - 1)) == 0;
  }
  /// Where the row of a lane that has one comes.
  DEVICE uint32_t place(uint32_t all) const {
    const uint32_t before = hoisted_ == 1u << warp::lane() ? 0 : (all & lanes_below()) | hoisted_;
    return population(before);
  }
  DEVICE static uint32_t lowest_bit(uint32_t bits) { return bits & (0 - bits); }
  DEVICE static uint32_t tokens(const CombineParams& params) {
    return params.by.topk.quotient(kWarpLanes);
  }
  /// By one lane with a row: its weight, once the owner has told it. False if the owner is masked.
  /// Which number the owner has for the batch is not known here: its word is where the epoch is.
  DEVICE bool await_weight(const Combine& call, float& weight) const {
    const CombineParams& params = call.params;
    if (!call.call.open(source_)) return false;
    if (early_.epoch == call.dispatched) {
      weight = std::bit_cast<float>(early_.value);
      return true;
    }
    const auto weights_of = [&](uint32_t batch) {
      const uint32_t choice = warp::lane() - static_cast<uint32_t>(first_bit(lanes_of_token_));
      return params.call.windows.weights_here(batch, source_, token_) + choice;
    };
    const Peer<Stamped> first = weights_of(0), second = weights_of(1);
    return call.call.await(Phase::combine_weights, source_, call.dispatched, [&](uint64_t& seen) {
      const Stamped one = look_at(first), other = look_at(second);
      const Stamped published = one.epoch == call.dispatched ? one : other;
      weight = std::bit_cast<float>(published.value);
      seen = std::max(one.epoch, other.epoch);
      return published.epoch == call.dispatched;
    });
  }
  DEVICE static Stamped look_at(Peer<Stamped> weight) {
    return load<Order::relaxed, Scope::sys>(weight);  // Relaxed: a word is all there is to see.
  }
  DEVICE static uint32_t lanes_above() { return ~lanes_below() << 1; }

  // Of this lane's pick, if it is one.
  uint32_t source_ = 0, token_ = 0;
  const int32_t* slot_at_ = nullptr;
  Peer<Stamped> early_at_;  ///< by this rank's number for the batch, mostly everybody's
  Peer<Bytes16> home_[2];   ///< of its token's sums, by parity
  uint32_t lanes_of_token_ = 0;
  int32_t slot_ = -1;        ///< of its row, or none
  Stamped early_{};          ///< its weight as it lay there before it was needed
  uint32_t hoisted_ = 0;     ///< the lane whose row was planned first, if it was chosen, as a bit
  uint32_t first_rows_ = 0;  ///< of a plan that hurries, those of the first sum
  bool weighed_ = false;
};

/// What a warp has in hand of a group: some of its rows, this lane's pieces of a span of each, and
/// the sums of the token that they belong to. A warp goes through all of a group's rows once for
/// each span of its own.
template <class Codec>
class RowsInHand {
 public:
  static constexpr uint32_t kAtOnce = Codec::kRowsAtOnce, kChunks = Codec::kSpanChunks;

  DEVICE RowsInHand(const CombineParams& params, const PlannedGroup& group, uint32_t part)
      : params_(params), group_(group), first_span_(warp::index() * params.parts + part) {
    take_span(first_span_);
    // Settled: what a lane without a piece holds is made here, where there is time.
    UNROLL for (auto& row : rows_) {
      UNROLL for (auto& piece : row.of) {
        UNROLL for (uint32_t& word : piece.word) word = settled(word);
      }
    }
  }
  /// Whether this warp has a span at all.
  DEVICE bool has_span() const { return first_span_ < params_.spans; }

  /// By all lanes: begins with a group, with so many rows.
  DEVICE void begin(uint32_t rows) { until_ = std::min(group_.rows, rows); }
  /// Whether others of the group come after those in hand.
  DEVICE bool are_followed() const { return until_ < group_.rows; }

  /// By all lanes: they are on their way.
  DEVICE void load() {
    int32_t slots[kAtOnce];  // Of rows that there are not as well: then nobody asks for them.
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) slots[i] =
        group_.row[first_ + i].slot & ~PlannedRow::kEnds;
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      UNROLL for (uint32_t c = 0; c < kChunks; ++c) {
        if (first_ + i < until_ && y_.there_is(c)) rows_[i].of[c] = y_.load(slots[i], c);
      }
    }
    // So that something follows: nvcc makes a branch of a last load that has a condition.
    warp::sync();
  }
  /// By all lanes: adds them, in their order, and sends the sums that are complete.
  DEVICE void add() {
    UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (first_ + i >= until_) continue;
      const PlannedRow row = group_.row[first_ + i];
      sums_.add(rows_[i], row.weight);
      if ((row.slot & PlannedRow::kEnds) != 0) send(row.home);
    }
  }
  /// To the next rows. False: there are no more, and the next group's are next.
  DEVICE bool advance() {
    first_ = until_;
    until_ = std::min(first_ + kAtOnce, group_.rows);
    if (first_ < group_.rows) return true;
    first_ = 0;
    until_ = std::min(uint32_t{kAtOnce}, group_.rows);
    const uint32_t next = span_ + warp::count() * params_.parts;
    if (next < params_.spans) {
      take_span(next);
      return true;
    }
    if (span_ != first_span_) take_span(first_span_);
    return false;
  }

 private:
  DEVICE void take_span(uint32_t span) {
    span_ = span;
    y_ = PiecesOfRows<kChunks>(params_, span);
    // A scale is that of all lanes. Those without channels in this span, which load nothing, must
    // hold nothing of the last one.
    if constexpr (Codec::kLanesShareScales) {
      UNROLL for (auto& row : rows_) row = SpanPieces<kChunks>();
    }
  }
  /// By all lanes: the sums go home, if anybody wants them, and begin anew.
  DEVICE void send(Peer<Bytes16> home) {
    UNROLL for (uint32_t c = 0; c < kChunks; ++c) {
      const uint32_t chunk = span_ * kChunks + c;
      const Bytes16 staged = Codec::encode(sums_.of[c]);
      // Relaxed: sixteen bytes are their own flag.
      if (home && Codec::has_piece(params_, chunk))
        store<Order::relaxed, Scope::sys>(home + (chunk * Codec::kPiecesAChunk + warp::lane()),
                                          staged);
    }
    sums_ = SpanSums<kChunks>();
  }

  const CombineParams& params_;
  const PlannedGroup& group_;
  const uint32_t first_span_;
  uint32_t span_ = 0;
  uint32_t first_ = 0, until_ = 0;  ///< of the rows in hand
  PiecesOfRows<kChunks> y_;
  SpanPieces<kChunks> rows_[kAtOnce];
  SpanSums<kChunks> sums_;
};

/// By a whole sending block, which meets when its first rows are on their way: nothing is staged
/// before it is known with whom the block speaks, and that it may. What the launch alone tells is
/// found out before the kernels before have ended.
template <class Codec>
DEVICE void send_combine(const CombineParams& params, CombineShared& shared) {
  // Whether first sums leave before more is known than they need, and whether the next tokens'
  // slots are asked for when the first rows are added: asked for before, nvcc has these wait for
  // them, too.
  constexpr bool kHurries = Codec::kHasRegisters, kFetchesLate = Codec::kHasRegisters;
  const LeavingWeights weights(params);
  const uint32_t part = params.by.streams.quotient(block::index());
  PlannedGroup& planned = shared.groups[warp::index()];
  RowsInHand<Codec> rows(params, planned, part);
  // Who tells weights alone writes no staging, and needs no room.
  const bool sums = block::index() < params.call.staging_blocks;
  const uint32_t end = sums && rows.has_span() ? OthersToken::count(params) : 0;
  uint32_t base = params.by.streams.remainder(block::index(), part);
  TokenGroup group;
  if (base < end) group = TokenGroup(params, base);

  const Call begun = begin_call(params.call, shared.call, Kind::combine);
  const Combine call{params, shared, begun, load_cached(params.dispatched)};
  group.fetch();
  if (!params.published) weights.publish(call);
  const Look look = Look::first(begun, sums);
  if (base < end) {
    group.plan(call, planned, kHurries);
    // Of these no more than it takes for something to leave: all warps of the GPU ask at once, and
    // the more they ask for the longer each waits.
    constexpr uint32_t kAtOnce = RowsInHand<Codec>::kAtOnce;
    rows.begin(kHurries ? std::min(group.first_rows(), kAtOnce) : kAtOnce);
    rows.load();
  }
  const bool some_closed = open_call(begun, look, sums);
  // If the first rows in hand are not all of their group, they leave before the next one is asked
  // for, and one that is alone before weights are here: until then the wire is idle.
  bool first = kHurries, stays = false;
  KEEP_ROLLED while (base < end) {
    const bool alone = first && !some_closed && group.hoists();
    const bool weighed = group.is_weighed() && (stays || !some_closed);
    if (!alone && !weighed) group.weigh(call, planned);
    stays = first && rows.are_followed();  // With the group, for its other rows.
    first = false;
    const auto fetch_next = [&] {
      base += TokenGroup::stride(params);
      group = base < end ? TokenGroup(params, base) : TokenGroup();
      group.fetch();
    };
    bool fetches = !stays;
    if (fetches && !kFetchesLate) fetch_next();
    KEEP_ROLLED for (;;) {
      rows.add();
      const bool more = rows.advance();
      if (more) rows.load();
      if (fetches && kFetchesLate) fetch_next();
      fetches = false;
      if (!more || stays) break;
    }
    if (stays || base >= end) continue;
    warp::sync();  // All lanes have read what the group before was.
    group.plan(call, planned, false);
    rows.begin(RowsInHand<Codec>::kAtOnce);
    rows.load();
  }
  advance_epoch(begun);
  close_call(begun);
}

}  // namespace tokenyard::low_latency
