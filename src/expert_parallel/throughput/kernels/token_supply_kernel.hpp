/// The tokens that a mover moves: its part of those that its block keeps, then what it claims of
/// the rest of all ranges.
#pragma once

#include "expert_parallel/throughput/kernels/choices_kernel.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"

namespace tokenyard::throughput {

/// Used by one warp, whose lanes agree. One claim is always drawn ahead, so that earlier rows hide
/// the latency of the atomic.
class TokenSupply {
 public:
  TOKENYARD_DEVICE explicit TokenSupply(const DispatchParams& params) : params_(params) {
    TokenRange kept = tokens_of_block(params, block::index());
    kept.end = std::min(kept.begin + params.shares.tokens_kept, kept.end);
    const TokenRange mine = part_of(kept, warp::index(), params.movers);
    next_ = mine.begin;
    end_ = mine.end;
  }

  /// Returns whether the next token is kept by the block, so that no other block claims it.
  TOKENYARD_DEVICE bool has_own() const { return !claiming_ && next_ < end_; }

  TOKENYARD_DEVICE uint32_t next_own() { return next_++; }

  /// Draws the next token; returns false if there is none or the call has failed.
  TOKENYARD_DEVICE bool next(const Dispatch& call, uint32_t& token) {
    if (next_ == end_ && !claim(call)) return false;
    token = next_++;
    return true;
  }

 private:
  TOKENYARD_DEVICE bool claim(const Dispatch& call) {
    if (params_.shares.claims == 0) return false;
    if (!claiming_) {
      if (!await_routes(call)) return false;
      claiming_ = true;
      draw(call);
    }
    const uint32_t blocks = grid::blocks();
    // Bounded: tickets are distinct, so at most `claims` draws can succeed.
    while (draws_ < params_.shares.claims) {
      ++draws_;
      const uint32_t drawn = warp::shuffle(ticket_, 0);
      if (drawn >= params_.shares.claims) return false;
      take(drawn, blocks);
      draw(call);
      if (next_ < end_) return true;
    }
    return false;
  }

  TOKENYARD_DEVICE void take(uint32_t drawn, uint32_t blocks) {
    if (params_.shares.in_order) {
      next_ = drawn * kTokensAClaim;
      end_ = std::min(next_ + kTokensAClaim, params_.tokens);
      return;
    }
    const uint32_t piece = drawn / blocks;
    const TokenRange range = tokens_of_block(params_, drawn % blocks);
    next_ = std::min(range.begin + params_.shares.tokens_kept + piece * kTokensAClaim, range.end);
    end_ = std::min(next_ + kTokensAClaim, range.end);
  }

  TOKENYARD_DEVICE void draw(const Dispatch& call) {
    if (warp::lane() == 0)
      ticket_ =
          fetch_add<Order::relaxed, Scope::gpu>(&params_.call.workspace->claims[call.epoch & 1], 1);
  }

  /// Waits for all blocks' routes, as they counted the claimed tokens. Acquire: pairs with
  /// announce_routes. A reused route is already known.
  TOKENYARD_DEVICE bool await_routes(const Dispatch& call) const {
    if (params_.call.kind == CallKind::dispatch_again) return true;
    bool known = true;
    if (warp::lane() == 0) {
      Awaited what{.phase = static_cast<uint32_t>(Phase::dispatch_routes),
                   .rank = params_.call.rank,
                   .expected = grid::blocks()};
      known = wait_until(call.deadline, what, [&] {
        what.seen =
            load<Order::acquire, Scope::gpu>(&params_.call.workspace->routes_known[call.epoch & 1]);
        return what.seen == what.expected;
      });
    }
    warp::sync();
    return warp::all(known);
  }

  const DispatchParams& params_;
  uint32_t next_ = 0, end_ = 0;
  uint32_t ticket_ = 0;  // Lane 0 only.
  uint32_t draws_ = 0;   // Draws used so far.
  bool claiming_ = false;
};

}  // namespace tokenyard::throughput
