/// The tokens whose rows a group pulls: its share, then claims of the rest, since the links serve
/// blocks unequally to the end.
#pragma once

#include "expert_parallel/throughput/kernels/combine_shared.hpp"

namespace tokenyard::throughput {

/// Tokens that a group pulls in sequence.
struct TokenRun {
  uint32_t token, stride, tokens;  ///< tokens: count; 0 at the end
};

/// Used by one warp, whose lanes agree. A claim is drawn ahead, so that earlier rows hide the
/// latency of the atomic.
class PullOrder {
 public:
  TOKENYARD_DEVICE PullOrder(const CombineParams& params, uint32_t epoch, uint32_t group)
      : params_(params),
        claims_(params.call.workspace->claims + (epoch & 1)),
        groups_(pullers_of(params) * params.groups),
        share_{.token = block::index() * params.groups + group, .stride = groups_, .tokens = 0} {
    if (share_.token < params.tokens)
      share_.tokens =
          std::min(params.tokens_kept, (params.tokens - share_.token - 1) / groups_ + 1);
  }

  /// Must precede the first next().
  TOKENYARD_DEVICE void begin() {
    if (!keeps_any()) draw();
  }

  /// Returns the next run: at most `most` tokens of the share, or a claim.
  TOKENYARD_DEVICE TokenRun next(uint32_t most) {
    if (!keeps_any()) return next_claim();
    TokenRun run = share_;
    run.tokens = std::min(most, share_.tokens);
    share_.token += run.tokens * share_.stride;
    share_.tokens -= run.tokens;
    if (!keeps_any()) draw();
    return run;
  }

 private:
  TOKENYARD_DEVICE bool keeps_any() const { return share_.tokens > 0; }

  TOKENYARD_DEVICE TokenRun next_claim() {
    const uint32_t begin = groups_ * params_.tokens_kept + warp::shuffle(ticket_, 0) * kTokensAPull;
    if (begin >= params_.tokens) return {0, 0, 0};
    draw();
    return {begin, 1, std::min(uint32_t{kTokensAPull}, params_.tokens - begin)};
  }

  TOKENYARD_DEVICE void draw() {
    if (warp::lane() == 0) ticket_ = fetch_add<Order::relaxed, Scope::gpu>(claims_, 1);
  }

  const CombineParams& params_;
  uint32_t* const claims_;
  const uint32_t groups_;
  TokenRun share_;       // The rest of the share.
  uint32_t ticket_ = 0;  // Lane 0 only.
};

}  // namespace tokenyard::throughput
