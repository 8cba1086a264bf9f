/// What follows attend_split: the parts of a KV head put together, and their output projection.
#pragma once

#include "megakernel/tasks/split_attention.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kSplitsMax = kSections;
inline constexpr uint32_t kUnitRows = 8;  ///< of the output projection

/// The output projection of one KV head's query heads, for some rows: eight rows a unit, added to
/// the sums of every rank.
template <class Kind>
struct ProjectAttention {
  static constexpr const char* kName = "project_attention";
  struct Args {
    const BFloat16* weights;           ///< [rows][columns], columns = heads * dim
    const Stamped* parts;              ///< [sequences][splits][columns], flagged
    const SplitWeight* split_weights;  ///< [sequences][splits][heads]
    SumsOfRanks<Kind> sums;            ///< [sequences][hidden]
    uint32_t* broken;
    uint32_t heads, dim, splits, first_row, rows, hidden;  ///< rows: a multiple of 8
    uint32_t attended_event;
  };
  struct Shared {
    float attended[Kind::kSequences][kGroupColumnsMax];
    SplitWeight weights[kSplitsMax * kSplitHeadsMax];  ///< [sequences][splits][heads]
  };

  /// Eight rows lie together: to whoever streams them they are one.
  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    const uint32_t columns = kUnitRows * args.heads * args.dim;
    return every_nth_row(args.weights, args.rows / kUnitRows, columns, 2 * columns, warp, warps);
  }

  static DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const uint32_t columns = args.heads * args.dim, mine = warp::lane() * kChunk;
    // Divisions, before anything is awaited.
    const uint32_t units = stream(args, context.warp(), context.warps()).rows;
    uint32_t head = context.thread() / args.dim;
    await_last_words(context, args);
    KEEP_ROLLED
    for (uint32_t first = 0; first < columns; first += context.threads()) {
      if (first > 0) head = (first + context.thread()) / args.dim;
      put_together(context, args, shared, first, head);
    }
    context.sync();
    KEEP_ROLLED
    for (uint32_t unit = 0; unit < units; ++unit) {
      const auto* const rows = reinterpret_cast<const Bytes16*>(context.next_unit());
      const uint32_t row =
          args.first_row + (context.warp() + unit * context.warps()) * kUnitRows + warp::lane() / 4;
      float sums[Kind::kSequences];
      UNROLL
      for (uint32_t s = 0; s < Kind::kSequences; ++s) {
        float x[kChunk] = {};
        if (mine < columns) {
          UNROLL
          for (uint32_t i = 0; i < kChunk; ++i) x[i] = shared.attended[s][mine + i];
        }
        float products[kUnitRows];
        UNROLL
        for (uint32_t i = 0; i < kUnitRows; ++i)
          products[i] = rows != nullptr && mine < columns
                            ? chunk_product(rows[i * columns / kChunk + warp::lane()], x)
                            : 0;
        sums[s] = scattered_sum(products);
      }
      context.release_unit();
      // Lanes of one row have the same sums.
      UNROLL
      for (uint32_t s = 0; s < Kind::kSequences; ++s) {
        const uint32_t word = s * args.hidden + word_at(row, args.hidden / kChunk);
        for (uint32_t rank = warp::lane() % 4; rank < args.sums.ranks(); rank += 4)
          args.sums.add(rank, word, sums[s], args.broken);
      }
    }
  }

 private:
  /// Of a sequence, at most.
  static constexpr uint32_t kSplits = kSplitsMax / Kind::kSequences;

  /// By each warp, a split a lane: until a word of its columns has come, which are written last.
  static DEVICE void await_last_words(Context& context, const Args& args) {
    const uint32_t column = context.warp() * kWarpLanes, epoch = epoch_of(context);
    const uint32_t columns = args.heads * args.dim;
    if (warp::lane() < Kind::kSequences * args.splits && column < columns)
      context.await_carried(Event{args.attended_event}, [&] {
        return load_flagged(args.parts + warp::lane() * columns + column).epoch == epoch;
      });
    warp::sync();
  }

  /// By all threads, a column each from `first` on, which belongs to `head`. With the first,
  /// weights come to shared memory: they travel together.
  static DEVICE void put_together(Context& context, const Args& args, Shared& shared,
                                  uint32_t first, uint32_t head) {
    const uint32_t columns = args.heads * args.dim, column = first + context.thread();
    const uint32_t epoch = epoch_of(context);
    const uint32_t weights = Kind::kSequences * args.splits * args.heads;
    const uint32_t of_thread = column < columns ? column : columns - 1;
    const uint32_t own = context.thread() < weights ? context.thread() : 0;
    Stamped parts[Kind::kSequences][kSplits];
    SplitWeight weight{};
    context.await_carried(Event{args.attended_event}, [&] {
      // All loads before the first question, without a condition in between: else each would wait
      // for the one before it. What is loaded for splits that there are not is the first's.
      UNROLL
      for (uint32_t s = 0; s < Kind::kSequences; ++s) {
        UNROLL
        for (uint32_t split = 0; split < kSplits; ++split)
          parts[s][split] = load_flagged(
              args.parts + (s * args.splits + (split < args.splits ? split : 0)) * columns +
              of_thread);
      }
      weight = load<Order::relaxed, Scope::gpu>(args.split_weights + own);
      bool come = weight.epoch == epoch;
      UNROLL
      for (uint32_t s = 0; s < Kind::kSequences; ++s) {
        UNROLL
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
    UNROLL
    for (uint32_t s = 0; s < Kind::kSequences; ++s)
      if (column < columns)
        shared.attended[s][column] =
            weighted_mean(args, shared.weights + s * args.splits * args.heads + head, parts[s]);
  }

  static DEVICE SplitWeight await_weight(Context& context, const Args& args, uint32_t index,
                                         uint32_t epoch) {
    SplitWeight weight{};
    context.await_carried(Event{args.attended_event}, [&] {
      weight = load<Order::relaxed, Scope::gpu>(args.split_weights + index);
      return weight.epoch == epoch;
    });
    return weight;
  }

  /// `weights`: of a head, `heads` apart.
  static DEVICE float weighted_mean(const Args& args, const SplitWeight* weights,
                                    const Stamped (&parts)[kSplits]) {
    // Without a branch, so that all of them are under way at once. Splits that there are not say
    // what the first says, and count for nothing.
    int32_t exponents[kSplits], highest = INT32_MIN / 2;
    float totals[kSplits], sums[kSplits];
    UNROLL
    for (uint32_t split = 0; split < kSplits; ++split) {
      const SplitWeight& weight = weights[(split < args.splits ? split : 0) * args.heads];
      exponents[split] = weight.exponent;
      totals[split] = weight.total;
      highest = exponents[split] > highest ? exponents[split] : highest;
    }
    UNROLL
    for (uint32_t split = 0; split < kSplits; ++split) {
      const float fade = power_of_two(exponents[split] - highest);
      const float counted = split < args.splits ? fade : 0;
      totals[split] *= counted;
      sums[split] = std::bit_cast<float>(parts[split].value) * counted;
    }
    return pairwise_sum(sums) / pairwise_sum(totals);
  }

  static DEVICE float chunk_product(const Bytes16& weights, const float* x) {
    float sums[4] = {};
    add_products(weights, x, sums);
    return total(sums);
  }
};

}  // namespace tokenyard::megakernel
