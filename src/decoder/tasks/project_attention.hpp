/// The stage after attend_split: combines the parts of a KV head, and applies the output
/// projection.
#pragma once

#include "decoder/tasks/split_attention.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kSplitsMax = kSections;

/// Computes some rows of the output projection of one KV head's query heads, and adds them to the
/// sums of every rank. All its columns are one slice, so warps divide bands instead.
template <class Kind>
struct ProjectAttention {
  static constexpr const char* kName = "project_attention";
  struct Args {
    const BFloat16* weights;           ///< [rows][columns] tiled, columns = heads * dim
    const Stamped* parts;              ///< [sequences][splits][columns], flagged
    const SplitWeight* split_weights;  ///< [sequences][splits][heads]
    SumsOfRanks<Kind> sums;
    uint32_t* broken;
    uint32_t heads, dim, splits, first_row, bands;
    uint32_t attended_event;
  };
  struct Shared {
    SliceShared<Kind::kSequences> attended;
    SplitWeight weights[kSplitsMax * kSplitHeadsMax];  ///< [sequences][splits][heads]
  };

  static TOKENYARD_DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    const uint32_t band_bytes = tiles_of(args.heads * args.dim) * kTileBytes;
    return {.from = reinterpret_cast<const std::byte*>(args.weights) + size_t{warp} * band_bytes,
            .row_stride = uint64_t{warps} * band_bytes,
            .rows = args.bands > warp ? (args.bands - warp + warps - 1) / warps : 0,
            .row_bytes = band_bytes,
            .piece_bytes = band_bytes};
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const uint32_t columns = args.heads * args.dim;
    // Divisions are done before any wait.
    const uint32_t bands = stream(args, context.warp(), context.warps()).rows;
    uint32_t head = context.thread() / args.dim;
    await_last_words(context, args);
    TOKENYARD_KEEP_ROLLED
    for (uint32_t first = 0; first < columns; first += context.threads()) {
      if (first > 0) head = (first + context.thread()) / args.dim;
      put_together(context, args, shared, first, head);
    }
    context.sync();
    const auto x = shared.attended.template fragments<false>(columns / kChunk);
    const uint32_t sequence = warp::lane() / kPairs, pair = warp::lane() % kPairs;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = 0; i < bands; ++i) {
      const RowPair products = band_product(context, x, tiles_of(columns));
      const uint32_t band = context.warp() + i * context.warps();
      if (sequence < Kind::kSequences)
        args.sums.add(args.first_row + band * kTileRows + 2 * pair, sequence, products,
                      args.broken);
    }
  }

 private:
  /// Splits per sequence, at most.
  static constexpr uint32_t kSplits = kSplitsMax / Kind::kSequences;

  /// Waits, by each warp with one split per lane, until a word of its columns has arrived; these
  /// are written last.
  static TOKENYARD_DEVICE void await_last_words(Context& context, const Args& args) {
    const uint32_t column = context.warp() * kWarpLanes, epoch = epoch_of(context);
    const uint32_t columns = args.heads * args.dim;
    if (warp::lane() < Kind::kSequences * args.splits && column < columns)
      context.await_carried(Event{args.attended_event}, [&] {
        return load_flagged(args.parts + warp::lane() * columns + column).epoch == epoch;
      });
    warp::sync();
  }

  /// Combines the splits, by all threads, one column each from `first` on, which belongs to `head`.
  /// The first call also loads the weights into shared memory, since both are in flight together.
  static TOKENYARD_DEVICE void put_together(Context& context, const Args& args, Shared& shared,
                                            uint32_t first, uint32_t head) {
    const uint32_t columns = args.heads * args.dim, column = first + context.thread();
    const uint32_t epoch = epoch_of(context);
    const uint32_t weights = Kind::kSequences * args.splits * args.heads;
    const uint32_t of_thread = column < columns ? column : columns - 1;
    const uint32_t own = context.thread() < weights ? context.thread() : 0;
    Stamped parts[Kind::kSequences][kSplits];
    SplitWeight weight{};
    context.await_carried(Event{args.attended_event}, [&] {
      // All loads before the first check, with no condition in between: otherwise each would wait
      // for the previous one. For splits that do not exist, the first split's words are loaded.
      TOKENYARD_UNROLL
      for (uint32_t s = 0; s < Kind::kSequences; ++s) {
        TOKENYARD_UNROLL
        for (uint32_t split = 0; split < kSplits; ++split)
          parts[s][split] = load_flagged(
              args.parts + (s * args.splits + (split < args.splits ? split : 0)) * columns +
              of_thread);
      }
      weight = load<Order::relaxed, Scope::gpu>(args.split_weights + own);
      bool come = weight.epoch == epoch;
      TOKENYARD_UNROLL
      for (uint32_t s = 0; s < Kind::kSequences; ++s) {
        TOKENYARD_UNROLL
        for (uint32_t split = 0; split < kSplits; ++split) come &= parts[s][split].epoch == epoch;
      }
      return come;
    });
    if (first == 0) {
      if (context.thread() < weights) shared.weights[own] = weight;
      for (uint32_t i = context.threads() + context.thread(); i < weights; i += context.threads())
        shared.weights[i] = await_weight(context, args, i, epoch);
      context.sync();
    }
    TOKENYARD_UNROLL
    for (uint32_t s = 0; s < Kind::kSequences; ++s)
      if (column < columns)
        shared.attended.put(
            s, column,
            weighted_mean(args, shared.weights + s * args.splits * args.heads + head, parts[s]));
  }

  static TOKENYARD_DEVICE SplitWeight await_weight(Context& context, const Args& args,
                                                   uint32_t index, uint32_t epoch) {
    SplitWeight weight{};
    context.await_carried(Event{args.attended_event}, [&] {
      weight = load<Order::relaxed, Scope::gpu>(args.split_weights + index);
      return weight.epoch == epoch;
    });
    return weight;
  }

  /// Returns the weighted mean of a column. `weights`: those of a head, `heads` apart.
  static TOKENYARD_DEVICE float weighted_mean(const Args& args, const SplitWeight* weights,
                                              const Stamped (&parts)[kSplits]) {
    // Branch-free, so that all loads are in flight together. Splits that do not exist have the
    // first split's values and count as zero.
    int32_t exponents[kSplits], highest = INT32_MIN / 2;
    float totals[kSplits], sums[kSplits];
    TOKENYARD_UNROLL
    for (uint32_t split = 0; split < kSplits; ++split) {
      const SplitWeight& weight = weights[(split < args.splits ? split : 0) * args.heads];
      exponents[split] = weight.exponent;
      totals[split] = weight.total;
      highest = exponents[split] > highest ? exponents[split] : highest;
    }
    TOKENYARD_UNROLL
    for (uint32_t split = 0; split < kSplits; ++split) {
      const float fade = power_of_two(exponents[split] - highest);
      const float counted = split < args.splits ? fade : 0;
      totals[split] *= counted;
      sums[split] = std::bit_cast<float>(parts[split].value) * counted;
    }
    return pairwise_sum(sums) / pairwise_sum(totals);
  }
};

}  // namespace tokenyard::megakernel
