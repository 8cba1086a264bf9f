/// Partial sums that other ranks send for a token of this rank, as a receiving warp takes them: one
/// span of each.
#pragma once

#include "expert_parallel/low_latency/kernels/sums_codecs_kernel.hpp"
#include "expert_parallel/low_latency/kernels/take_kernel.hpp"

namespace tokenyard::low_latency {

/// Partial sums that a lane holds in registers.
inline constexpr uint32_t kPartialSumsHeld = 3;

/// Relaxed: other warps may add to it concurrently, and it orders no other data.
TOKENYARD_DEVICE uint32_t lost_of(const TokenPlan& plan) {
  return TokenPlan::lost_in(load<Order::relaxed, Scope::block>(&plan.outcome));
}

/// A span of a token's partial sums, a few of them in hand at a time.
template <class Codec>
class PartialSums {
 public:
  static constexpr uint32_t kChunks = Codec::kSpanChunks;
  /// Whether a lane keeps the addresses and weights of its pieces.
  static constexpr bool kKeepsPlaces = Codec::kHasRegisters;

  TOKENYARD_DEVICE explicit PartialSums(const Combine& call) : call_(call) {}

  /// Loads the pieces of up to kPartialSumsHeld partial sums from `first` on. Called by all lanes.
  /// All loads are in flight together.
  TOKENYARD_DEVICE void load_from(const TokenPlan& plan, uint32_t first, uint32_t span) {
    plan_ = &plan;
    first_ = first;
    span_ = span;
    ++loads_;
    place_ = span * kChunks * Codec::kPiecesAChunk + warp::lane();
    const uint32_t count = std::min(plan.partial_sums - first, uint32_t{kPartialSumsHeld});
    TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) held_[c] =
        Codec::has_piece(call_.params, span * kChunks + c) ? count : 0;
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kPartialSumsHeld; ++i) {
      if (kKeepsPlaces && i < count) {
        staged_[i] = settled(place_in_plan(i));
        weights_[i] = plan.partial_sum[first + i].weight;
      }
      TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) if (i < held_[c]) pieces_[i].of[c] =
          look(i, c);
    }
  }

  /// Waits for what load_from did not find, except the `lost` partial sums. Called by all lanes.
  /// Returns `lost` plus those that did not arrive, as bits. `between` is called between polls, if
  /// there are any.
  template <class Between>
  TOKENYARD_DEVICE uint32_t await_loaded(uint32_t lost, Between between) {
    if (lost == 0 && first_missing() == kPartialSumsHeld) return 0;
    drop(lost);
    uint32_t awaited = kNobody;
    auto begin = static_cast<uint32_t>(cycles());
    call_.call.await_ranks(
        Phase::combine_partials, call_.call.epoch(),
        [&] {
          look_again();
          const uint32_t i = first_missing();
          const uint32_t rank =
              i < kPartialSumsHeld ? plan_->partial_sum[first_ + i].rank : kNobody;
          if (rank != awaited && thread::index() == 0) {
            const auto now = static_cast<uint32_t>(cycles());
            if (awaited != kNobody) call_.tail.waited()[awaited] += now - begin;
            begin = now;
          }
          awaited = rank;
          between();
          return rank;
        },
        [&] { return difference(); },
        [&](uint32_t) {
          lost |= 1u << (first_ + first_missing());
          drop(lost);
        });
    return lost;
  }

  /// Adds what is in hand, except the `lost` partial sums. Called by all lanes.
  TOKENYARD_DEVICE void add_to(SpanSums<kChunks>& sums, uint32_t lost) const {
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kPartialSumsHeld; ++i) {
      // All lanes add, since a codec's lanes may need one another.
      if (first_ + i >= plan_->partial_sums || (lost >> (first_ + i) & 1) != 0) continue;
      TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c)
          Codec::add(sums.of[c], pieces_[i].of[c], weight(i));
    }
  }
  /// Empties the places of what is in hand, except lost partial sums. Called by all lanes.
  TOKENYARD_DEVICE void empty() const {
    each_in_hand([](Peer<Bytes16> place, const Bytes16&) { put_back(place); });
  }
  /// Undoes empty(). Called by all lanes. Relaxed, as every store of a piece.
  TOKENYARD_DEVICE void fill_again() const {
    each_in_hand([](Peer<Bytes16> place, const Bytes16& piece) {
      store<Order::relaxed, Scope::sys>(place, piece);
    });
  }
  /// Returns whether everything read has been emptied.
  TOKENYARD_DEVICE bool emptied_all() const { return kKeepsPlaces ? loads_ <= 1 : loads_ == 0; }
  /// Returns, as bits, which places of a token's span empty() empties.
  TOKENYARD_DEVICE uint32_t emptied_in_hand(const TokenPlan& plan, uint32_t span) const {
    if (!kKeepsPlaces || plan_ != &plan || span_ != span) return 0;
    return ((1u << kPartialSumsHeld) - 1) << first_;
  }

 private:
  /// Calls `body(place, piece)` for what is in hand, except lost partial sums. The relaxed read of
  /// `lost` suffices: this warp knows its own losses, and has all pieces of partial sums that
  /// others lose.
  template <class Body>
  TOKENYARD_DEVICE void each_in_hand(Body body) const {
    if (!kKeepsPlaces || loads_ == 0) return;
    const uint32_t lost = lost_of(*plan_) >> first_;
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kPartialSumsHeld; ++i) {
      TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks;
                            ++c) if (i < held_[c] && (lost >> i & 1) == 0)
          body(place(i) + c * Codec::kPiecesAChunk, pieces_[i].of[c]);
    }
  }
  /// Loads this lane's piece of a chunk of a partial sum. Relaxed: sixteen bytes are their own
  /// flag.
  TOKENYARD_DEVICE Bytes16 look(uint32_t i, uint32_t c) const {
    return load<Order::relaxed, Scope::sys>(place(i) + c * Codec::kPiecesAChunk);
  }
  /// Returns the place of this lane's first piece.
  TOKENYARD_DEVICE Peer<Bytes16> place(uint32_t i) const {
    return kKeepsPlaces ? staged_[i] : place_in_plan(i);
  }
  TOKENYARD_DEVICE Peer<Bytes16> place_in_plan(uint32_t i) const {
    return plan_->partial_sum[first_ + i].staged + place_;
  }
  TOKENYARD_DEVICE float weight(uint32_t i) const {
    return kKeepsPlaces ? weights_[i] : plan_->partial_sum[first_ + i].weight;
  }
  TOKENYARD_DEVICE bool misses(uint32_t i, uint32_t c) const {
    return i < held_[c] && !has_come(pieces_[i].of[c]);
  }
  /// Reloads all missing pieces together.
  TOKENYARD_DEVICE void look_again() {
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kPartialSumsHeld; ++i) {
      TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) if (misses(i, c)) pieces_[i].of[c] =
          look(i, c);
    }
  }

  /// Returns whether the awaited rank has sent its row in the other format.
  TOKENYARD_DEVICE Difference difference() const {
    const uint32_t i = first_missing();
    if (i == kPartialSumsHeld) return {};
    const Peer<Bytes16> other = plan_->partial_sum[first_ + i].staged + call_.params.only_in_other;
    // Relaxed: sixteen bytes are their own flag.
    return {.found = has_come(load<Order::relaxed, Scope::sys>(other)),
            .phase = Phase::sums_format,
            .expected = Codec::kIsLogFmt,
            .seen = !Codec::kIsLogFmt};
  }

  /// Zeroes what did not arrive. Word by word and without a branch: given a branch, the compiler
  /// indexes by the condition and keeps indexed data in memory.
  TOKENYARD_DEVICE void drop(uint32_t lost) {
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kPartialSumsHeld; ++i) {
      const bool is_lost = (lost >> (first_ + i) & 1) != 0;
      TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) {
        TOKENYARD_UNROLL for (uint32_t& word : pieces_[i].of[c].word) word = is_lost ? 0 : word;
      }
    }
  }

  /// Returns the first partial sum with a missing piece, or kPartialSumsHeld.
  TOKENYARD_DEVICE uint32_t first_missing() const {
    uint32_t first = kPartialSumsHeld;
    TOKENYARD_UNROLL for (uint32_t i = kPartialSumsHeld; i-- > 0;) {
      TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) if (misses(i, c)) first = i;
    }
    return first;
  }

  const Combine& call_;
  uint32_t loads_ = 0;
  // Of the last load_from:
  const TokenPlan* plan_ = nullptr;
  uint32_t span_ = 0, first_ = 0;
  SpanPieces<kChunks> pieces_[kPartialSumsHeld] = {};
  Peer<Bytes16> staged_[kPartialSumsHeld];  ///< places, if they are kept, and weights
  float weights_[kPartialSumsHeld] = {};
  uint32_t place_ = 0;           ///< index of this lane's first piece in a staged row
  uint32_t held_[kChunks] = {};  ///< partial sums of which this lane has a piece
};

/// This lane's places in a span of staged rows.
template <class Codec>
class SpanPlaces {
 public:
  TOKENYARD_DEVICE SpanPlaces(const CombineParams& params, uint32_t span)
      : at_(span * kChunks * Codec::kPiecesAChunk + warp::lane()) {
    TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) has_piece_[c] =
        Codec::has_piece(params, span * kChunks + c);
  }
  TOKENYARD_DEVICE void put_back_of(Peer<Bytes16> row) const {
    TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) if (has_piece_[c])
        put_back(row + (at_ + c * Codec::kPiecesAChunk));
  }

 private:
  static constexpr uint32_t kChunks = Codec::kSpanChunks;
  uint32_t at_;
  bool has_piece_[kChunks];
};

}  // namespace tokenyard::low_latency
