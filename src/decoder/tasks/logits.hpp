/// The last stage of a step whose stages pass on words: logits, and the best of them.
#pragma once

#include "decoder/tasks/layer.hpp"
#include "megakernel/tasks/token.hpp"

namespace tokenyard::megakernel {

/// Computes the logits of some rows of the head, and the best of them. A block that has the whole
/// vector knows that no block still reads earlier vectors (residual.hpp), so it clears its part of
/// their sums for the next iteration.
template <class Kind>
struct ProjectLogits {
  static constexpr const char* kName = "project_logits";
  struct Args {
    const BFloat16* weights;  ///< [rows][hidden] tiled
    const BFloat16* norm;     ///< [hidden]
    const uint64_t* sums;     ///< the vectors
    uint64_t* cleared;        ///< [stages][stage_words] sums of earlier stages
    float* logits;            ///< [rows] per sequence, sequence_logits apart
    Best* best;               ///< [sequences]
    uint32_t rows, first_token, hidden, terms, stages, residual_event, sequence_logits;
    uint32_t stage_words;
    BlockShare cleared_words;  ///< of each stage, by this block
    float epsilon;
  };
  struct Shared {
    VectorShared<Kind> vectors;
    BestShared best[Kind::kSequences];
  };

  static TOKENYARD_DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t) {
    return slice_of_bands(args.weights, bands_of(args.rows), tiles_of(args.hidden), args.hidden,
                          warp);
  }
  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const Residual<Kind> residual{.sums = args.sums,
                                  .table = nullptr,
                                  .token = nullptr,
                                  .terms = args.terms,
                                  .event = {args.residual_event},
                                  .carry_to = nullptr,
                                  .carried = {},
                                  .broken = nullptr,
                                  .hidden = args.hidden};
    const auto x = normed_slice(context, shared.vectors.normed, residual, args.norm);
    // Each warp awaited only its slice, but clears sums of other slices too.
    context.sync();
    clear_sums(context, args);
    Best best{0, kNoRow};
    const auto take = [&](uint32_t row, uint32_t sequence, float logit) {
      if (row >= args.rows) return;  // Padding of the last band.
      args.logits[size_t{sequence} * args.sequence_logits + row] = logit;
      best = better(best, of_logit(logit, args.first_token + row));
    };
    for_each_product(context, shared.vectors.partial, x, args.hidden, bands_of(args.rows),
                     [&](uint32_t row, uint32_t sequence, const RowPair& products) {
                       const float scale = scale_of(context, shared.vectors.normed, sequence,
                                                    args.hidden, args.epsilon);
                       take(row, sequence, products.even * scale);
                       take(row + 1, sequence, products.odd * scale);
                     });
    const uint32_t mine = product_sequence<Kind::kSequences>(context);
    TOKENYARD_UNROLL
    for (uint32_t s = 0; s < Kind::kSequences; ++s) {
      const Best of_block =
          best_of_block(context, shared.best[s], s == mine ? best : Best{0, kNoRow});
      if (context.thread() == 0) args.best[s] = of_block;
    }
  }

 private:
  /// Clears this block's part of earlier sums. Relaxed: the event that this task signals precedes
  /// the next iteration's terms.
  static TOKENYARD_DEVICE void clear_sums(Context& context, const Args& args) {
    const uint32_t mine = args.cleared_words.end - args.cleared_words.begin;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = context.thread(); i < args.stages * mine; i += context.threads())
      store<Order::relaxed, Kind::kScope>(
          args.cleared + size_t{i / mine} * args.stage_words + args.cleared_words.begin + i % mine,
          0);
  }
};

}  // namespace tokenyard::megakernel
