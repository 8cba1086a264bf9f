/// How a warp counts tokens: a lane a token, whose picks it holds in registers, some at a time.
/// What picks of a token have in common a lane sees by itself, and where tokens go together a warp
/// finds by a ballot a rank: an eighth of the instructions that a lane for each pick takes, and
/// counting is bound by them.
#pragma once

#include "device/device.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/throughput/kernels/choices_kernel.hpp"

namespace tokenyard::throughput {

/// Picks of a lane's token, from `first` on. By all lanes, whether they have a token or not.
struct ChoicesHeld {
  static constexpr uint32_t kChoices = 8;
  int64_t ids[kChoices];

  /// Nothing is asked of what is loaded: it may still be on its way.
  DEVICE static ChoicesHeld load(const DispatchParams& params, uint32_t token, bool present,
                                 uint32_t first) {
    ChoicesHeld held;
    UNROLL
    for (uint32_t i = 0; i < kChoices; ++i)
      held.ids[i] =
          present && first + i < params.topk ? load_id(params, token, first + i) : Choice::kNone;
    return held;
  }

  DEVICE bool valid(const DispatchParams& params, uint32_t i) const {
    return static_cast<uint64_t>(ids[i]) < params.experts;
  }
  /// Of a pick that is no expert: a number that no other pick held has.
  DEVICE uint32_t expert(const DispatchParams& params, uint32_t i) const {
    return valid(params, i) ? static_cast<uint32_t>(ids[i]) : 0xffffffffu - i;
  }
};

/// The tokens that a warp counts, 32 at a time. The first ones' picks are loaded when this is made,
/// so that the way to memory and back is spent on something else.
class TokenChoices {
 public:
  DEVICE TokenChoices(const DispatchParams& params, TokenRange tokens)
      : params_(params),
        tokens_(tokens),
        first_(
            ChoicesHeld::load(params, token_after(tokens.begin), present_after(tokens.begin), 0)) {}

  DEVICE TokenRange tokens() const { return tokens_; }

  /// `body(token, present, each)` is executed by all lanes for their tokens; `each(visit)` calls
  /// `visit(choices, first)` for the token's picks, some at a time. Once.
  template <class Body>
  DEVICE void each(Body body) {
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
  DEVICE static uint32_t token_after(uint32_t from) { return from + warp::lane(); }
  DEVICE bool present_after(uint32_t from) const { return token_after(from) < tokens_.end; }

  const DispatchParams& params_;
  const TokenRange tokens_;
  ChoicesHeld first_;
};

}  // namespace tokenyard::throughput
