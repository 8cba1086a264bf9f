/// Which tokens a mover moves: its part of the first ones of its block's range, then what it claims
/// of everybody's rest.
#pragma once

#include "expert_parallel/throughput/kernels/choices_kernel.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"

namespace tokenyard::throughput {

/// Used by one warp, whose lanes agree. One claim is always drawn ahead, so that its way to memory
/// and back is hidden behind the rows before it.
class TokenSupply {
 public:
  DEVICE explicit TokenSupply(const DispatchParams& params) : params_(params) {
    TokenRange kept = tokens_of_block(params, block::index());
    kept.end = std::min(kept.begin + params.shares.tokens_kept, kept.end);
    const TokenRange mine = part_of(kept, warp::index(), params.movers);
    next_ = mine.begin;
    end_ = mine.end;
  }

  /// Whether the next token is one of the block's own that nobody else claims.
  DEVICE bool has_own() const { return !claiming_ && next_ < end_; }

  DEVICE uint32_t next_own() { return next_++; }

  /// False if there are no more, or the call has failed.
  DEVICE bool next(const Dispatch& call, uint32_t& token) {
    if (next_ == end_ && !claim(call)) return false;
    token = next_++;
    return true;
  }

 private:
  DEVICE bool claim(const Dispatch& call) {
    if (params_.shares.claims == 0) return false;
    if (!claiming_) {
      if (!await_routes(call)) return false;
      claiming_ = true;
      draw(call);
    }
    const uint32_t blocks = grid::blocks();
    // Tickets differ, so nobody can draw more that count: whatever happens, this ends.
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

  DEVICE void take(uint32_t drawn, uint32_t blocks) {
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

  DEVICE void draw(const Dispatch& call) {
    if (warp::lane() == 0)
      ticket_ =
          fetch_add<Order::relaxed, Scope::gpu>(&params_.call.workspace->claims[call.epoch & 1], 1);
  }

  /// Claimed tokens were counted by other blocks. A route that is used again is known already.
  DEVICE bool await_routes(const Dispatch& call) const {
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
  uint32_t ticket_ = 0;  // Lane 0's.
  uint32_t draws_ = 0;   // Looked at so far.
  bool claiming_ = false;
};

}  // namespace tokenyard::throughput
