/// Counts tokens with one lane per token, which holds the token's choices in registers, some at a
/// time. A lane compares the choices of its token by itself, and the warp finds tokens with a
/// common destination by one ballot per rank: an eighth of the instructions that one lane per
/// choice takes, and instructions bound counting.
#pragma once

#include "device/device.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/throughput/kernels/choices_kernel.hpp"

namespace tokenyard::throughput {

/// Choices of a lane's token, from `first` on. Loaded by all lanes, whether they have a token or
/// not.
struct ChoicesHeld {
  static constexpr uint32_t kChoices = 8;
  int64_t ids[kChoices];

  /// Does not use the loaded values: they may still be in flight.
  TOKENYARD_DEVICE static ChoicesHeld load(const DispatchParams& params, uint32_t token,
                                           bool present, uint32_t first) {
    ChoicesHeld held;
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kChoices; ++i)
      held.ids[i] =
          present && first + i < params.topk ? load_id(params, token, first + i) : Choice::kNone;
    return held;
  }

  TOKENYARD_DEVICE bool valid(const DispatchParams& params, uint32_t i) const {
    return static_cast<uint64_t>(ids[i]) < params.experts;
  }
  /// Returns the expert; for an invalid choice, a number that no other held choice has.
  TOKENYARD_DEVICE uint32_t expert(const DispatchParams& params, uint32_t i) const {
    return valid(params, i) ? static_cast<uint32_t>(ids[i]) : 0xffffffffu - i;
  }
};

/// Tokens that a warp counts, 32 at a time. The constructor issues the loads of the first choices,
/// so that other work hides their latency.
class TokenChoices {
 public:
  TOKENYARD_DEVICE TokenChoices(const DispatchParams& params, TokenRange tokens)
      : params_(params),
        tokens_(tokens),
        first_(
            ChoicesHeld::load(params, token_after(tokens.begin), present_after(tokens.begin), 0)) {}

  TOKENYARD_DEVICE TokenRange tokens() const { return tokens_; }

  /// Calls `body(token, present, each)` on all lanes for their tokens; `each(visit)` calls
  /// `visit(choices, first)` for the token's choices, some at a time. May be called once.
  template <class Body>
  TOKENYARD_DEVICE void each(Body body) {
    for (uint32_t from = tokens_.begin; from < tokens_.end; from += kWarpLanes) {
      const uint32_t token = token_after(from);
      const bool present = present_after(from);
      if (from != tokens_.begin) first_ = ChoicesHeld::load(params_, token, present, 0);
      body(token, present, [&](auto visit) {
        visit(first_, 0u);
        for (uint32_t first = ChoicesHeld::kChoices; first < params_.topk;
             first += ChoicesHeld::kChoices)
          visit(ChoicesHeld::load(params_, token, present, first), first);
      });
    }
  }

 private:
  TOKENYARD_DEVICE static uint32_t token_after(uint32_t from) { return from + warp::lane(); }
  TOKENYARD_DEVICE bool present_after(uint32_t from) const {
    return token_after(from) < tokens_.end;
  }

  const DispatchParams& params_;
  const TokenRange tokens_;
  ChoicesHeld first_;
};

}  // namespace tokenyard::throughput
