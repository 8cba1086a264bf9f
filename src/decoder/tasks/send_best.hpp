/// Agreement on the next token between ranks that share a vocabulary.
#pragma once

#include "decoder/tasks/dense_kind.hpp"
#include "megakernel/tasks/token.hpp"

namespace tokenyard::megakernel {

/// Sends, for each sequence, the best of this rank's blocks to this rank's slots on every rank; NaN
/// if one of its values could not be added to sums, so that all ranks end alike. All logits of the
/// rank are complete when it runs, so it clears the last stage's sums.
template <class Kind>
struct SendBest {
  static constexpr const char* kName = "send_best";
  struct Args {
    const Best* parts;            ///< [part_count][sequences]
    Peer<Best> to[kSumRanksMax];  ///< each [sequences]
    uint64_t* sums;               ///< [sum_count] to clear
    const uint32_t* broken;
    uint32_t part_count, sum_count, ranks;
  };

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    clear_sums<Scope::sys>(context, args.sums, args.sum_count);
    // One sequence per warp.
    TOKENYARD_KEEP_ROLLED
    for (uint32_t s = context.warp(); s < Kind::kSequences; s += context.warps()) {
      Best best = best_of_parts(args.parts + s, args.part_count, Kind::kSequences);
      if (!warp::elect()) continue;
      // Relaxed: written before the events that this task awaited.
      if (load<Order::relaxed, Scope::gpu>(args.broken) != 0) best = {0, kNoToken};
      for (uint32_t rank = 0; rank < args.ranks; ++rank)
        store<Order::weak, Scope::sys>(args.to[rank] + s, best);
    }
  }
};

}  // namespace tokenyard::megakernel
