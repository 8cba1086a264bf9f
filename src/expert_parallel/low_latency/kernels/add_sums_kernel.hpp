/// The receiving blocks of a combine: each finishes some of this rank's tokens, one after another.
/// A partial sum from another rank is its own flag (protocol.hpp, 1); the block votes before it
/// counts or drops one (7).
#pragma once

#include "expert_parallel/low_latency/kernels/local_rows_kernel.hpp"
#include "expert_parallel/low_latency/kernels/partial_sums_kernel.hpp"

namespace tokenyard::low_latency {

/// A lane's choice of one of this rank's tokens, as loaded.
struct OwnChoice {
  int32_t expert = -1;                       ///< -1: none
  WeightedRow row{.slot = -1, .weight = 0};  ///< slot if the expert is on this rank; weight in any
                                             ///< case

  /// Does not use the loaded values: they may still be in flight.
  TOKENYARD_DEVICE static OwnChoice load(const Combine& call, uint32_t token) {
    const CombineParams& params = call.params;
    const uint32_t lane = warp::lane();
    if (token >= params.tokens || lane >= params.topk) return {};
    const size_t own_tokens = size_t{params.call.rank} * params.tokens_max;
    const size_t at = size_t{token} * params.topk + lane;
    return {.expert = params.choices[at],
            .row = {params.row_slot[own_tokens * params.topk + at], params.weights[at]}};
  }
};

/// Plans a token once for the whole block, so that each warp need not. Called by all lanes of one
/// warp, possibly before open_call has found which ranks are open.
TOKENYARD_DEVICE void plan_token(const Combine& call, uint32_t token, const OwnChoice& choice,
                                 TokenPlan& plan) {
  const uint32_t lane = warp::lane(), self = call.params.call.rank;
  const bool choices = choice.expert >= 0;
  const uint32_t rank =
      choices ? call.params.by.homes.rank_of(static_cast<uint32_t>(choice.expert)) : self;
  const bool here = choice.row.slot >= 0, there = rank != self;
  // Lanes without a partial sum must match no other lane.
  const uint32_t same = warp::match(there ? rank : call.params.call.ranks + lane);
  const bool leads = there && (same & lanes_below()) == 0;
  const uint32_t rows = warp::ballot(here), partial_sums = warp::ballot(leads);
  if (here) plan.row[population(rows & lanes_below())] = choice.row;
  if (leads) {
    const uint32_t chosen = population(same);
    plan.partial_sum[population(partial_sums & lanes_below())] = {
        .staged = call.params.call.windows.partial_here(call.call.parity(), rank, token),
        .rank = static_cast<uint16_t>(rank),
        .choices = static_cast<uint16_t>(chosen),
        .weight = chosen == 1 ? choice.row.weight : 1.0f};
  }
  if (lane != 0) return;
  plan.rows = population(rows);
  plan.partial_sums = population(partial_sums);
  plan.outcome = 0;
}

/// The tokens of this rank that a block finishes, one batch at a time: one warp plans each.
struct OwnTokens {
  uint32_t first, stride;

  TOKENYARD_DEVICE bool there_are(const CombineParams& params) const {
    return first < params.tokens;
  }
  TOKENYARD_DEVICE OwnTokens next() const { return {first + warp::count() * stride, stride}; }
  TOKENYARD_DEVICE uint32_t at(uint32_t place) const { return first + place * stride; }
  TOKENYARD_DEVICE bool has(const CombineParams& params, uint32_t place) const {
    return place < warp::count() && at(place) < params.tokens;
  }
};

/// Calls `body(span)` for each span of this warp. Called by all lanes.
template <class Body>
TOKENYARD_DEVICE void each_span(const CombineParams& params, Body body) {
  TOKENYARD_KEEP_ROLLED for (uint32_t span = warp::index(); span < params.spans;
                             span += warp::count()) body(span);
}

/// Stores a span of a token's result. Called by all lanes.
template <uint32_t kChunks>
TOKENYARD_DEVICE void store_sums(const Combine& call, uint32_t token, uint32_t span,
                                 const SpanSums<kChunks>& sums) {
  const uint32_t pieces = call.params.pieces;
  const uint32_t piece = span * kChunks * kWarpLanes + warp::lane();
  Bytes16* const to = reinterpret_cast<Bytes16*>(call.params.out) + size_t{token} * pieces + piece;
  TOKENYARD_UNROLL for (uint32_t c = 0; c < kChunks; ++c) if (piece + c * kWarpLanes < pieces)
      store_vector(to + c * kWarpLanes, sums.of[c].rounded());
}

/// Adds the partial sums of other ranks to a span. Called by all lanes. `meanwhile` is called while
/// the first loads are in flight, `between` between polls. Returns false if a partial sum was lost;
/// the token's plan then says which.
template <class Codec, class Meanwhile, class Between>
TOKENYARD_DEVICE bool await_partial_sums(PartialSums<Codec>& partial_sums, TokenPlan& plan,
                                         uint32_t span, SpanSums<Codec::kSpanChunks>& sums,
                                         Meanwhile meanwhile, Between between) {
  // Relaxed: other warps may add bits concurrently, and the block votes afterwards.
  uint32_t lost = lost_of(plan);
  TOKENYARD_KEEP_ROLLED for (uint32_t first = 0;; first += kPartialSumsHeld) {
    partial_sums.load_from(plan, first, span);
    if (first == 0) meanwhile();
    lost = warp::bit_or(partial_sums.await_loaded(lost, between));
    partial_sums.add_to(sums, lost);
    if (first + kPartialSumsHeld >= plan.partial_sums) break;
  }
  // Before the span counts as finished, and before any lane empties the places that are not lost.
  if (lost != 0)
    warp::once([&] { return fetch_or<Order::relaxed, Scope::block>(&plan.outcome, lost); });
  return lost == 0;
}

/// Finishes all spans of this warp as if nothing were lost; returns whether nothing was. Called by
/// all lanes. Rows of y depend on no other rank but take long to load, so the next token's are
/// added while this token's partial sums are in flight. The partial sums read last remain in hand.
/// A warp with only one span also empties, while it waits, the places of tokens that all warps have
/// finished without a loss; `tokens_emptied` counts these.
template <class Codec>
TOKENYARD_DEVICE bool finish_tokens(const Combine& call, const OwnTokens& tokens,
                                    PartialSums<Codec>& partial_sums, uint32_t& tokens_emptied) {
  const CombineParams& params = call.params;
  constexpr uint32_t kChunks = Codec::kSpanChunks;
  TokenPlan* const plans = call.shared.plans;
  const uint32_t finished =
      params.spans <= warp::count() ? params.spans * TokenPlan::kSpanFinished : UINT32_MAX;
  bool complete = true;
  each_span(params, [&](uint32_t span) {
    const PiecesOfRows<kChunks> y(params, span);
    SpanSums<kChunks> sums;
    LocalRows<Codec>(y, plans[0], true).add_to(sums);
    TOKENYARD_KEEP_ROLLED for (uint32_t place = 0; tokens.has(params, place); ++place) {
      SpanSums<kChunks> ahead;
      const bool more = tokens.has(params, place + 1);
      LocalRows<Codec> next(y, plans[more ? place + 1 : place], more);
      complete &= await_partial_sums(
          partial_sums, plans[place], span, sums, [&] { next.add_to(ahead); },
          [&] {
            if (tokens_emptied == place) return;
            const TokenPlan& plan = plans[tokens_emptied];
            if (load<Order::relaxed, Scope::block>(&plan.outcome) != finished) return;
            const SpanPlaces<Codec> places(params, span);
            TOKENYARD_KEEP_ROLLED for (uint32_t i = 0; i < plan.partial_sums; ++i)
                places.put_back_of(plan.partial_sum[i].staged);
            ++tokens_emptied;
          });
      store_sums(call, tokens.at(place), span, sums);
      if (more && warp::elect())
        fetch_add<Order::relaxed, Scope::block>(&plans[place].outcome, TokenPlan::kSpanFinished);
      sums = ahead;
    }
  });
  return complete;
}

/// Repeats this warp's spans of tokens for which any warp has lost partial sums, without those, so
/// that every channel lacks the same ones. Called by all lanes. Places of these tokens were either
/// not emptied or filled again, so the other partial sums are all there.
template <class Codec>
TOKENYARD_DEVICE void finish_without_lost(const Combine& call, const OwnTokens& tokens) {
  constexpr uint32_t kChunks = Codec::kSpanChunks;
  const CombineParams& params = call.params;
  each_span(params, [&](uint32_t span) {
    const PiecesOfRows<kChunks> y(params, span);
    TOKENYARD_KEEP_ROLLED for (uint32_t place = 0; tokens.has(params, place); ++place) {
      const TokenPlan& plan = call.shared.plans[place];
      if (plan.lost() == 0) continue;
      SpanSums<kChunks> sums;
      LocalRows<Codec>(y, plan, true).add_to(sums);
      PartialSums<Codec> partial_sums(call);
      TOKENYARD_KEEP_ROLLED for (uint32_t first = 0; first < plan.partial_sums;
                                 first += kPartialSumsHeld) {
        partial_sums.load_from(plan, first, span);
        partial_sums.add_to(sums, plan.lost());
      }
      store_sums(call, tokens.at(place), span, sums);
    }
  });
}

/// Empties the places that this warp has read, except those of `partial_sums`, which are empty
/// already. Called by all lanes. A place that may not have been filled is left alone: a masked rank
/// may still write there, and the place is refilled before that rank is unmasked.
template <class Codec>
TOKENYARD_DEVICE void empty_places(const Combine& call, const OwnTokens& tokens,
                                   const PartialSums<Codec>& partial_sums, uint32_t first) {
  const CombineParams& params = call.params;
  if (partial_sums.emptied_all()) return;
  each_span(params, [&](uint32_t span) {
    const SpanPlaces<Codec> places(params, span);
    TOKENYARD_KEEP_ROLLED for (uint32_t place = first; tokens.has(params, place); ++place) {
      const TokenPlan& plan = call.shared.plans[place];
      const uint32_t kept = plan.kept() & ~partial_sums.emptied_in_hand(plan, span);
      // Unrolled: between vote and end the block has little else to do.
      TOKENYARD_UNROLL for (uint32_t i = 0; i < kPartialSumsHeld; ++i) if ((kept >> i & 1) != 0)
          places.put_back_of(plan.partial_sum[i].staged);
      TOKENYARD_KEEP_ROLLED for (uint32_t left = kept >> kPartialSumsHeld << kPartialSumsHeld;
                                 left != 0; left &= left - 1)
          places.put_back_of(plan.partial_sum[first_bit(left)].staged);
    }
  });
}

/// Marks the partial sums of ranks that are not open as lost. Called by the warp that planned the
/// token.
TOKENYARD_DEVICE void lose_closed(const Combine& call, TokenPlan& plan) {
  const bool closed =
      warp::lane() < plan.partial_sums && !call.call.open(plan.partial_sum[warp::lane()].rank);
  const uint32_t lost = warp::ballot(closed);
  if (warp::elect()) plan.outcome = lost;
}

/// Stores how many choices each result lacks. Called by the whole block.
TOKENYARD_DEVICE void publish_lost(const Combine& call, const OwnTokens& tokens) {
  TOKENYARD_KEEP_ROLLED for (uint32_t place = thread::index(); tokens.has(call.params, place);
                             place += block::threads()) {
    const TokenPlan& plan = call.shared.plans[place];
    const int32_t* const unplaced = call.params.unplaced;
    uint32_t choices =
        unplaced == nullptr ? 0 : static_cast<uint32_t>(load_cached(unplaced + tokens.at(place)));
    TOKENYARD_KEEP_ROLLED for (uint32_t left = plan.lost(); left != 0; left &= left - 1) choices +=
        plan.partial_sum[first_bit(left)].choices;
    call.params.lost[tokens.at(place)] = static_cast<int32_t>(choices);
  }
}

/// Finishes one batch of tokens. Called by a whole receiving block. A partial sum counts whole or
/// not at all: the block votes once its warps have finished their chunks of the batch. Before the
/// vote a warp empties only places whose content it holds, or those of tokens that every warp has
/// finished. `some_closed`: some ranks are not open.
template <class Codec>
TOKENYARD_DEVICE void finish_round(const Combine& call, const OwnTokens& tokens, bool some_closed) {
  if (some_closed) {
    if (tokens.has(call.params, warp::index())) lose_closed(call, call.shared.plans[warp::index()]);
    block::sync();
  }
  PartialSums<Codec> partial_sums(call);
  uint32_t tokens_emptied = 0;
  const bool complete = finish_tokens(call, tokens, partial_sums, tokens_emptied);
  partial_sums.empty();  // While other warps finish theirs.
  if (block::any(!complete)) [[unlikely]] {
    partial_sums.fill_again();
    finish_without_lost<Codec>(call, tokens);
    partial_sums.empty();
  }
  empty_places(call, tokens, partial_sums, tokens_emptied);
  if (call.params.lost != nullptr) publish_lost(call, tokens);
}

/// Called by a whole receiving block. Each warp plans one token while the block finds the open
/// ranks.
template <class Codec>
TOKENYARD_DEVICE void receive_combine(const CombineParams& params, CombineShared& shared) {
  const CombineTail tail = tail_of(params);
  const Call begun = begin_call(params.call, tail.open(), Kind::combine);
  const Combine call{params, shared, tail, begun};
  const Look look = Look::first(begun, false);
  const uint32_t senders = sends(params.call.part) ? params.call.send_blocks : 0;
  OwnTokens tokens{block::index() - senders, grid::blocks() - senders};
  const auto plan = [&] {
    if (!tokens.has(params, warp::index())) return;
    const uint32_t token = tokens.at(warp::index());
    plan_token(call, token, OwnChoice::load(call, token), shared.plans[warp::index()]);
  };
  plan();
  for (uint32_t rank = thread::index(); rank < params.call.ranks; rank += block::threads())
    tail.waited()[rank] = 0;
  const bool some_closed = open_call(begun, look, false);
  advance_epoch(begun);  // Here, since the block has to wait anyway.
  TOKENYARD_KEEP_ROLLED while (tokens.there_are(params)) {
    finish_round<Codec>(call, tokens, some_closed);
    tokens = tokens.next();
    if (!tokens.there_are(params)) break;
    block::sync();  // All warps have read the previous plans.
    plan();
    block::sync();
  }
  if (params.waited != nullptr) {
    // The last vote ordered the first thread's additions. Relaxed: the host reads after the kernel.
    for (uint32_t rank = thread::index(); rank < params.call.ranks; rank += block::threads())
      add<Order::relaxed, Scope::gpu>(params.waited + rank, tail.waited()[rank]);
  }
  close_call(begun);
}

}  // namespace tokenyard::low_latency
