/// The sending blocks of a combine: they publish weights to all ranks, unless the dispatch did,
/// then send sums of this rank's experts' rows to the tokens' owners. The block does not
/// synchronize before weights have left and the first rows are being loaded: each warp plans its
/// part of a token itself. A token's only row on this rank is sent unchanged and weighted by its
/// owner, so it waits for no weight. Nothing is stored to a rank's staging before its `drained`
/// shows that its buffer is empty.
#pragma once

#include "expert_parallel/low_latency/kernels/call_kernel.hpp"
#include "expert_parallel/low_latency/kernels/sums_codecs_kernel.hpp"

namespace tokenyard::low_latency {

TOKENYARD_DEVICE float load_weight(const CombineParams& params, uint32_t index) {
  return index < params.tokens * params.topk ? load_cached(params.weights + index) : 0;
}

/// Returns the first destination of a sending block's weights, counted from the next rank. The last
/// blocks come first, since in small calls they have nothing to sum; but the very last may have to
/// publish `drained`.
TOKENYARD_DEVICE uint32_t first_weights(const CombineParams& params) {
  const uint32_t last = params.call.send_blocks - 1;
  return block::index() == last ? last : last - 1 - block::index();
}

/// This rank's weights, as a sending block publishes them to every send_blocks-th rank. Others wait
/// for them and they need no drained buffer, so each thread checks itself whether a rank is masked,
/// and computes the first destination's address before it can check.
class LeavingWeights {
 public:
  TOKENYARD_DEVICE explicit LeavingWeights(const CombineParams& params)
      : turn_(first_weights(params)), to_(settled(place(params, turn_))) {}

  /// Called by the whole block.
  TOKENYARD_DEVICE void publish(const Combine& call) const {
    const CallParams& common = call.params.call;
    if (turn_ + 1 >= common.ranks) return;
    publish(call, turn_, to_);
    TOKENYARD_KEEP_ROLLED for (uint32_t turn = turn_ + common.send_blocks; turn + 1 < common.ranks;
                               turn += common.send_blocks)
        publish(call, turn, place(call.params, turn));
  }

 private:
  TOKENYARD_DEVICE static Peer<Stamped> place(const CombineParams& params, uint32_t turn) {
    const CallParams& common = params.call;
    if (turn + 1 >= common.ranks) return {};
    return common.windows.weights(rank_after(common, 1 + turn), params.batch, common.rank);
  }
  TOKENYARD_DEVICE static void publish(const Combine& call, uint32_t turn, Peer<Stamped> to) {
    constexpr uint32_t kHeld = 3;  // Loads in flight together.
    const CombineParams& params = call.params;
    const uint32_t destination = rank_after(params.call, 1 + turn);
    const uint32_t count = params.tokens * params.topk;
    const Look look = Look::at(call.call, destination, false);
    const bool open = !params.call.leaves_out(destination);
    TOKENYARD_KEEP_ROLLED for (uint32_t first = thread::index(); first < count;
                               first += kHeld * block::threads()) {
      float held[kHeld];
      TOKENYARD_UNROLL for (uint32_t i = 0; i < kHeld; ++i) held[i] =
          load_weight(params, first + i * block::threads());
      if (look.closed_to_sends(call.call) || !open) break;
      TOKENYARD_UNROLL for (uint32_t i = 0; i < kHeld; ++i) {
        const uint32_t at = first + i * block::threads();
        if (at < count) publish_weight(to + at, call.weights_stamp, held[i]);
      }
    }
  }

  uint32_t turn_;
  Peer<Stamped> to_;
};

/// A token of another rank. Order: token 0 of all ranks, then token 1, each time starting with
/// another rank, so that no destination is the first of all ranks.
struct OthersToken {
  uint32_t source, token;

  TOKENYARD_DEVICE static uint32_t count(const CombineParams& params) {
    return (params.call.ranks - 1) * params.tokens_max;
  }
  TOKENYARD_DEVICE static OthersToken at(const CombineParams& params, uint32_t position) {
    const Divisor& others = params.by.others;
    const uint32_t token = others.quotient(position), turn = position + token;
    return {rank_after(params.call, 1 + others.remainder(turn, others.quotient(turn))), token};
  }
};

/// Tokens of other ranks that a warp plans together, one lane per choice: as many as fit.
/// Consecutive ones are `streams` positions apart.
class TokenGroup {
 public:
  /// Returns the distance between the first tokens of consecutive groups.
  TOKENYARD_DEVICE static uint32_t stride(const CombineParams& params) {
    return tokens(params) * params.streams;
  }

  TokenGroup() = default;
  /// Computes the addresses of its choices, for which the launch parameters suffice. Called by all
  /// lanes. `base`: position of the first token.
  TOKENYARD_DEVICE TokenGroup(const CombineParams& params, uint32_t base) {
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
  /// Starts the loads and does not use their results. Called by all lanes.
  TOKENYARD_DEVICE void fetch() {
    if (slot_at_ == nullptr) return;
    slot_ = load_cached(slot_at_);
    early_ = look_at(early_at_);
  }

  /// Plans the group's rows, in the order of tokens and their choices, with the weights that have
  /// arrived. Called by all lanes. If weights are missing and it `hurries`, a token's only row
  /// comes first.
  TOKENYARD_DEVICE void plan(const Combine& call, PlannedGroup& planned, bool hurries) {
    const uint32_t all = warp::ballot(has_row());
    const bool waits = has_row() && !is_alone(all) && early_.epoch != call.weights_stamp;
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
  /// Returns whether the plan has all the weights that it needs.
  TOKENYARD_DEVICE bool is_weighed() const { return weighed_; }
  /// Returns whether the first planned row is a token's only row, moved ahead while others wait for
  /// weights.
  TOKENYARD_DEVICE bool hoists() const { return hoisted_ != 0; }
  /// Returns how many planned rows make up the first sum of a group that hurries.
  TOKENYARD_DEVICE uint32_t first_rows() const { return first_rows_; }
  /// Waits for missing weights. Called by all lanes, once the open ranks are known. A token whose
  /// owner is masked is sent nowhere. Must not be called once sums of the group have left, other
  /// than the hoisted row: an owner that has all its sums may overwrite the weights with its next
  /// ones.
  TOKENYARD_DEVICE void weigh(const Combine& call, PlannedGroup& planned) {
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
  TOKENYARD_DEVICE bool has_row() const { return slot_ >= 0; }
  /// Returns whether this lane has its token's only row. `all`: lanes with rows, as bits.
  TOKENYARD_DEVICE bool is_alone(uint32_t all) const {
    const uint32_t of_token = all & lanes_of_token_;
    return has_row() && (of_token & (of_token - 1)) == 0;
  }
  /// Returns the index in the plan of this lane's row.
  TOKENYARD_DEVICE uint32_t place(uint32_t all) const {
    const uint32_t before = hoisted_ == 1u << warp::lane() ? 0 : (all & lanes_below()) | hoisted_;
    return population(before);
  }
  TOKENYARD_DEVICE static uint32_t lowest_bit(uint32_t bits) { return bits & (0 - bits); }
  TOKENYARD_DEVICE static uint32_t tokens(const CombineParams& params) {
    return params.by.topk.quotient(kWarpLanes);
  }
  /// Waits for the weight of this lane's row; returns false if the owner is masked. Called by one
  /// lane with a row. The owner's number for the batch is unknown here: the word with the right
  /// epoch counts.
  TOKENYARD_DEVICE bool await_weight(const Combine& call, float& weight) const {
    const CombineParams& params = call.params;
    if (!call.call.open(source_)) return false;
    if (early_.epoch == call.weights_stamp) {
      weight = std::bit_cast<float>(early_.value);
      return true;
    }
    const auto weights_of = [&](uint32_t batch) {
      const uint32_t choice = warp::lane() - static_cast<uint32_t>(first_bit(lanes_of_token_));
      return params.call.windows.weights_here(batch, source_, token_) + choice;
    };
    const Peer<Stamped> first = weights_of(0), second = weights_of(1);
    return call.call.await(
        Phase::combine_weights, source_, call.weights_stamp, [&](uint64_t& seen) {
          const Stamped one = look_at(first), other = look_at(second);
          const Stamped published = one.epoch == call.weights_stamp ? one : other;
          weight = std::bit_cast<float>(published.value);
          seen = published.epoch;
          return published.epoch == call.weights_stamp;
        });
  }
  TOKENYARD_DEVICE static Stamped look_at(Peer<Stamped> weight) {
    return load<Order::relaxed, Scope::sys>(weight);  // Relaxed: the word releases no other data.
  }
  TOKENYARD_DEVICE static uint32_t lanes_above() { return ~lanes_below() << 1; }

  // Of this lane's choice, if it has one.
  uint32_t source_ = 0, token_ = 0;
  const int32_t* slot_at_ = nullptr;
  Peer<Stamped> early_at_;  ///< under this rank's number for the batch, mostly the same on all
                            ///< ranks
  Peer<Bytes16> home_[2];   ///< of its token's partial sum, by parity
  uint32_t lanes_of_token_ = 0;
  int32_t slot_ = -1;        ///< of its row, or -1
  Stamped early_{};          ///< its weight, as loaded before it was needed
  uint32_t hoisted_ = 0;     ///< lane whose row was moved to the front, as a bit; 0: none
  uint32_t first_rows_ = 0;  ///< rows of the first sum, if the plan hurries
  bool weighed_ = false;
};

/// The rows of a group that a warp has in hand: this lane's pieces of a span of some rows, and the
/// sums of the token that they belong to. A warp passes over all rows of a group once per span.
template <class Codec>
class RowsInHand {
 public:
  static constexpr uint32_t kAtOnce = Codec::kRowsAtOnce, kChunks = Codec::kSpanChunks;

  TOKENYARD_DEVICE RowsInHand(const CombineParams& params, const PlannedGroup& group, uint32_t part)
      : params_(params), group_(group), first_span_(warp::index() * params.parts + part) {
    take_span(first_span_);
    // Settled: the content of a lane without a piece is set here, where there is time.
    TOKENYARD_UNROLL for (auto& row : rows_) {
      TOKENYARD_UNROLL for (auto& piece : row.of) {
        TOKENYARD_UNROLL for (uint32_t& word : piece.word) word = settled(word);
      }
    }
  }
  /// Returns whether this warp has any span.
  TOKENYARD_DEVICE bool has_span() const { return first_span_ < params_.spans; }

  /// Begins a group with `rows` rows. Called by all lanes.
  TOKENYARD_DEVICE void begin(uint32_t rows) { until_ = std::min(group_.rows, rows); }
  /// Returns whether more rows of the group follow those in hand.
  TOKENYARD_DEVICE bool are_followed() const { return until_ < group_.rows; }

  /// Starts loading the rows. Called by all lanes.
  TOKENYARD_DEVICE void load() {
    int32_t slots[kAtOnce];  // Computed even for absent rows, which are not loaded.
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) slots[i] =
        group_.row[first_ + i].slot & ~PlannedRow::kEnds;
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) {
        if (first_ + i < until_ && y_.there_is(c)) rows_[i].of[c] = y_.load(slots[i], c);
      }
    }
    // Something must follow: nvcc turns a last load with a condition into a branch.
    warp::sync();
  }
  /// Adds the rows in order and sends the sums that are complete. Called by all lanes.
  TOKENYARD_DEVICE void add() {
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (first_ + i >= until_) continue;
      const PlannedRow row = group_.row[first_ + i];
      sums_.add(rows_[i], row.weight);
      if ((row.slot & PlannedRow::kEnds) != 0) send(row.home);
    }
  }
  /// Advances to the next rows. Returns false at the end of the group.
  TOKENYARD_DEVICE bool advance() {
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
  TOKENYARD_DEVICE void take_span(uint32_t span) {
    span_ = span;
    y_ = PiecesOfRows<kChunks>(params_, span);
    // All lanes share a scale: lanes without channels in this span, which load nothing, must not
    // hold values of the previous span.
    if constexpr (Codec::kLanesShareScales) {
      TOKENYARD_UNROLL for (auto& row : rows_) row = SpanPieces<kChunks>();
    }
  }
  /// Sends the sums to the token's owner, if any rank awaits them, and clears them. Called by all
  /// lanes.
  TOKENYARD_DEVICE void send(Peer<Bytes16> home) {
    TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) {
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
  uint32_t first_ = 0, until_ = 0;  ///< range of the rows in hand
  PiecesOfRows<kChunks> y_;
  SpanPieces<kChunks> rows_[kAtOnce];
  SpanSums<kChunks> sums_;
};

/// Called by a whole sending block, which synchronizes once its first rows are being loaded:
/// nothing is staged before the open ranks are known and have drained their buffers. Values that
/// follow from the launch parameters are computed before earlier kernels have ended.
template <class Codec>
TOKENYARD_DEVICE void send_combine(const CombineParams& params, CombineShared& shared) {
  // kHurries: the first sums leave as soon as what they need is known. kFetchesLate: the next
  // tokens' slots are loaded only once the first rows are being added; loaded earlier, nvcc would
  // make the first rows wait for them too.
  constexpr bool kHurries = Codec::kHasRegisters, kFetchesLate = Codec::kHasRegisters;
  const LeavingWeights weights(params);
  const uint32_t part = params.by.streams.quotient(block::index());
  PlannedGroup& planned = shared.groups[warp::index()];
  RowsInHand<Codec> rows(params, planned, part);
  // A block that only publishes weights writes no staging and needs no drained buffer.
  const bool sums = block::index() < params.call.staging_blocks;
  const uint32_t end = sums && rows.has_span() ? OthersToken::count(params) : 0;
  uint32_t base = params.by.streams.remainder(block::index(), part);
  TokenGroup group;
  if (base < end) group = TokenGroup(params, base);

  const CombineTail tail = tail_of(params);
  const Call begun = begin_call(params.call, tail.open(), Kind::combine);
  const Combine call{params, shared, tail, begun, load_cached(params.weights_stamp)};
  group.fetch();
  if (!params.published) weights.publish(call);
  const Look look = Look::first(begun, sums);
  if (base < end) {
    group.plan(call, planned, kHurries);
    // No more rows than the first sum needs: all warps of the GPU load at once, and more loads make
    // each one slower.
    constexpr uint32_t kAtOnce = RowsInHand<Codec>::kAtOnce;
    rows.begin(kHurries ? std::min(group.first_rows(), kAtOnce) : kAtOnce);
    rows.load();
  }
  const bool some_closed = open_call(begun, look, sums);
  // If more rows of the group follow those in hand, these leave before the next are loaded, and a
  // token's only row before weights have arrived: until then the link is idle.
  bool first = kHurries, stays = false;
  TOKENYARD_KEEP_ROLLED while (base < end) {
    const bool alone = first && !some_closed && group.hoists();
    const bool weighed = group.is_weighed() && (stays || !some_closed);
    if (!alone && !weighed) group.weigh(call, planned);
    stays = first && rows.are_followed();  // Stay with the group for its other rows.
    first = false;
    const auto fetch_next = [&] {
      base += TokenGroup::stride(params);
      group = base < end ? TokenGroup(params, base) : TokenGroup();
      group.fetch();
    };
    bool fetches = !stays;
    if (fetches && !kFetchesLate) fetch_next();
    TOKENYARD_KEEP_ROLLED for (;;) {
      rows.add();
      const bool more = rows.advance();
      if (more) rows.load();
      if (fetches && kFetchesLate) fetch_next();
      fetches = false;
      if (!more || stays) break;
    }
    if (stays || base >= end) continue;
    warp::sync();  // All lanes have read the previous plan.
    group.plan(call, planned, false);
    rows.begin(RowsInHand<Codec>::kAtOnce);
    rows.load();
  }
  advance_epoch(begun);
  close_call(begun);
}

}  // namespace tokenyard::low_latency
