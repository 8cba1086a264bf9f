/// The last stage of a step whose stages hand on words: logits, and the best of them.
#pragma once

#include "megakernel/tasks/residual.hpp"
#include "megakernel/tasks/token.hpp"

namespace tokenyard::megakernel {

/// Some rows of the head, and the best of them. Whoever is here knows that all tasks of the layers
/// are done: it clears its part of their sums for the next iteration.
template <class Kind>
struct ProjectLogits {
  static constexpr const char* kName = "project_logits";
  struct Args {
    const BFloat16* weights;  ///< [rows][hidden]
    const BFloat16* norm;     ///< [hidden]
    const uint64_t* sums;     ///< [sequences][hidden] the vectors
    uint64_t* cleared;        ///< [stages][sequences][hidden] sums of earlier stages
    float* logits;            ///< [rows], of each sequence sequence_logits apart
    Best* best;               ///< [sequences]
    uint32_t rows, first_token, hidden, terms, stages, residual_event, sequence_logits;
    ChunkShare cleared_chunks;
    float epsilon;
  };
  struct Shared {
    NormedShared<Kind> normed;
    BestShared best[Kind::kSequences];
  };

  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    return every_nth_row(args.weights, args.rows, args.hidden, 2 * args.hidden, warp, warps);
  }
  static DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const Residual<Kind> residual{.sums = args.sums,
                                  .terms = args.terms,
                                  .event = {args.residual_event},
                                  .rows = {},
                                  .carry_to = nullptr,
                                  .carried = {},
                                  .broken = nullptr,
                                  .hidden = args.hidden};
    const uint32_t rows = stream(args, context.warp(), context.warps()).rows;
    float scales[Kind::kSequences];
    normed_input(context, shared.normed, residual, args.norm, args.epsilon, scales);
    clear_sums(context, args);
    Best best[Kind::kSequences];
    UNROLL
    for (uint32_t s = 0; s < Kind::kSequences; ++s) best[s] = {0, kNoRow};
    const auto take = [&](const LaneProduct& product) {
      const uint32_t row = context.warp() + product.row * context.warps();
      const float logit = product.value * of_sequence(scales, product.sequence);
      if (product.share == 0)
        args.logits[size_t{product.sequence} * args.sequence_logits + row] = logit;
      UNROLL
      for (uint32_t s = 0; s < Kind::kSequences; ++s)
        if (s == product.sequence)
          best[s] = better(best[s], of_logit(logit, args.first_token + row));
    };
    if constexpr (Kind::kSequences == 1) {
      const RegisterInput x(shared.normed.x[0], residual.chunks());
      for_each_product<2>(context, x, residual.chunks(), rows, take);
    } else {
      for_each_product<2>(context, shared.normed.x, residual.chunks(), rows, take);
    }
    UNROLL
    for (uint32_t s = 0; s < Kind::kSequences; ++s) {
      best[s] = best_of_block(context, shared.best[s], best[s]);
      if (context.thread() == 0) args.best[s] = best[s];
    }
  }

 private:
  /// Relaxed: the event that this task signals comes before the next iteration's terms.
  static DEVICE void clear_sums(Context& context, const Args& args) {
    const uint32_t chunks = args.hidden / kChunk;
    const uint32_t mine = args.cleared_chunks.end - args.cleared_chunks.begin;
    KEEP_ROLLED
    for (uint32_t i = context.thread(); i < args.stages * Kind::kSequences * kChunk * mine;
         i += context.threads()) {
      const uint32_t chunk = args.cleared_chunks.begin + i % mine;
      store<Order::relaxed, Kind::kScope>(args.cleared + i / mine * chunks + chunk, 0);
    }
  }
};

}  // namespace tokenyard::megakernel
