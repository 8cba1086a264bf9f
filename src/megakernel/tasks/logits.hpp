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
    const uint64_t* sums;     ///< [hidden] the vector
    uint64_t* cleared;        ///< [stages][hidden] sums of earlier stages
    float* logits;            ///< [rows]
    Best* best;
    uint32_t rows, first_token, hidden, terms, stages, residual_event;
    ChunkShare cleared_chunks;
    float epsilon;
  };
  struct Shared {
    NormedShared normed;
    BestShared best;
  };

  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    return every_nth_row(args.weights, args.rows, args.hidden, 2 * args.hidden, warp, warps);
  }
  static DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const Residual residual{.sums = args.sums,
                            .terms = args.terms,
                            .event = {args.residual_event},
                            .row = nullptr,
                            .carry_to = nullptr,
                            .carried = {},
                            .broken = nullptr,
                            .hidden = args.hidden};
    const uint32_t rows = stream(args, context.warp(), context.warps()).rows;
    const float scale =
        normed_input<Kind>(context, shared.normed, residual, args.norm, args.epsilon);
    clear_sums(context, args);
    Best best{0, kNoRow};
    const RegisterInput x(shared.normed.x, residual.chunks());
    for_each_product<2>(context, x, residual.chunks(), rows, [&](uint32_t i, float product) {
      const uint32_t row = context.warp() + i * context.warps();
      const float logit = product * scale;
      if (warp::elect()) args.logits[row] = logit;
      best = better(best, of_logit(logit, args.first_token + row));
    });
    best = best_of_block(context, shared.best, best);
    if (context.thread() == 0) *args.best = best;
  }

 private:
  /// Relaxed: the event that this task signals comes before the next iteration's terms.
  static DEVICE void clear_sums(Context& context, const Args& args) {
    const uint32_t chunks = args.hidden / kChunk;
    const uint32_t mine = args.cleared_chunks.end - args.cleared_chunks.begin;
    KEEP_ROLLED
    for (uint32_t i = context.thread(); i < args.stages * kChunk * mine; i += context.threads()) {
      const uint32_t chunk = args.cleared_chunks.begin + i % mine;
      store<Order::relaxed, Kind::kScope>(args.cleared + i / mine * chunks + chunk, 0);
    }
  }
};

}  // namespace tokenyard::megakernel
