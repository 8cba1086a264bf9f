/// What follows attend_split: the parts of a KV head put together, and their output projection.
#pragma once

#include "megakernel/tasks/split_attention.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kSplitsMax = 16;

/// The output projection of one KV head's query heads, for some rows: eight rows a unit, added to
/// sums.
struct ProjectAttention {
  static constexpr const char* kName = "project_attention";
  static constexpr uint32_t kUnitRows = 8;
  struct Args {
    const BFloat16* weights;           ///< [rows][columns], columns = heads * dim
    const float* parts;                ///< [splits][columns]
    const SplitWeight* split_weights;  ///< [splits][heads]
    uint64_t* sums;                    ///< [hidden]
    uint32_t* broken;
    uint32_t heads, dim, splits, first_row, rows, hidden;  ///< rows: a multiple of 8
  };
  static constexpr ArgField kFields[] = {TOKENYARD_FIELD(pointer, weights),
                                         TOKENYARD_FIELD(pointer, parts),
                                         TOKENYARD_FIELD(pointer, split_weights),
                                         TOKENYARD_FIELD(pointer, sums),
                                         TOKENYARD_FIELD(pointer, broken),
                                         TOKENYARD_FIELD(u32, heads),
                                         TOKENYARD_FIELD(u32, dim),
                                         TOKENYARD_FIELD(u32, splits),
                                         TOKENYARD_FIELD(u32, first_row),
                                         TOKENYARD_FIELD(u32, rows),
                                         TOKENYARD_FIELD(u32, hidden)};
  struct Shared {
    float attended[kGroupColumnsMax];
  };

  /// Eight rows lie together: to whoever streams them they are one.
  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    const uint32_t columns = kUnitRows * args.heads * args.dim;
    return every_nth_row(args.weights, args.rows / kUnitRows, columns, 2 * columns, warp, warps);
  }

  static DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const uint32_t columns = args.heads * args.dim, mine = warp::lane() * kChunk;
    KEEP_ROLLED
    for (uint32_t i = context.thread(); i < columns; i += context.threads())
      shared.attended[i] = put_together(args, i);
    context.sync();
    float x[kChunk] = {};
    if (mine < columns)
      for (uint32_t i = 0; i < kChunk; ++i) x[i] = shared.attended[mine + i];
    const uint32_t units = stream(args, context.warp(), context.warps()).rows;
    KEEP_ROLLED
    for (uint32_t unit = 0; unit < units; ++unit) {
      float products[kUnitRows];
      const auto* const rows = reinterpret_cast<const Bytes16*>(context.next_unit());
      UNROLL
      for (uint32_t row = 0; row < kUnitRows; ++row)
        products[row] =
            mine < columns ? chunk_product(rows[row * columns / kChunk + warp::lane()], x) : 0;
      context.release_unit();
      const float sum = sum_of_row(products);
      const uint32_t row =
          args.first_row + (context.warp() + unit * context.warps()) * kUnitRows + warp::lane() / 4;
      if (warp::lane() % 4 == 0)
        add_term(args.sums + word_at(row, args.hidden / kChunk), sum, args.broken);
    }
  }

 private:
  static DEVICE float put_together(const Args& args, uint32_t column) {
    const uint32_t columns = args.heads * args.dim, head = column / args.dim;
    SplitWeight weights[kSplitsMax];
    float parts[kSplitsMax];
    float highest = -1e30f, total = 0, sum = 0;
    // All loads before the first use, without a condition in between: else each would wait for the
    // one before it. What is loaded for splits that there are not is not used.
    UNROLL
    for (uint32_t split = 0; split < kSplitsMax; ++split) {
      const uint32_t at = split < args.splits ? split : 0;
      weights[split] = load<Order::weak, Scope::gpu>(args.split_weights + at * args.heads + head);
      parts[split] = load<Order::weak, Scope::gpu>(args.parts + at * columns + column);
    }
    UNROLL
    for (uint32_t split = 0; split < kSplitsMax; ++split)
      if (split < args.splits && weights[split].highest > highest) highest = weights[split].highest;
    UNROLL
    for (uint32_t split = 0; split < kSplitsMax; ++split) {
      if (split >= args.splits) continue;
      const float fade = exponential(weights[split].highest - highest);
      total += weights[split].total * fade;
      sum += parts[split] * fade;
    }
    return sum / total;
  }

  static DEVICE float chunk_product(const Bytes16& weights, const float* x) {
    float sums[4] = {};
    add_products(weights, x, sums);
    return total(sums);
  }

  /// Eight sums over all lanes: lanes 4 r .. 4 r + 3 get that of row r. Each of the first three
  /// exchanges halves how many rows a lane still has to do with.
  static DEVICE float sum_of_row(float (&products)[kUnitRows]) {
    UNROLL
    for (uint32_t rows = kUnitRows / 2, mask = kWarpLanes / 2; rows > 0; rows /= 2, mask /= 2)
      UNROLL
    for (uint32_t row = 0; row < rows; ++row) {
      const bool upper = (warp::lane() & mask) != 0;
      const float keep = upper ? products[row + rows] : products[row];
      const float give = upper ? products[row] : products[row + rows];
      products[row] = keep + warp::shuffle_xor(give, mask);
    }
    products[0] += warp::shuffle_xor(products[0], 2);
    return products[0] + warp::shuffle_xor(products[0], 1);
  }
};

}  // namespace tokenyard::megakernel
