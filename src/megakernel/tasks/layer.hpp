/// The tasks of a dense layer whose stages hand on words instead of counters, for one token of each
/// sequence:
///
///     project_qkv -(flagged)-> attend_split -(flagged)-> project_attention -(sums)->
///     gate_up -(flagged)-> project_down -(sums)-> the next layer, or pick_logits
///
/// Every block has one task of each. Its KV head is that of `blocks / heads` neighbours, which
/// share the head's rows of QKV and the positions of its cache; its inner elements and columns of
/// the down projection are those of one part of the feed-forward. So only two stages of five
/// concern all blocks.
#pragma once

#include "megakernel/tasks/residual.hpp"

namespace tokenyard::megakernel {

/// Rows of Q, K and V of one KV head, as flagged words.
template <class Kind>
struct ProjectQkv {
  static constexpr const char* kName = "project_qkv";
  struct Args {
    const BFloat16* weights;  ///< [rows][hidden]
    const BFloat16* norm;     ///< [hidden]
    const uint64_t* sums;     ///< [sequences][hidden] the vectors, or null in the first layer
    const BFloat16* table;    ///< [vocabulary][hidden] of the first layer
    const uint32_t* token;    ///< [sequences] likewise
    uint64_t* carry_to;       ///< [sequences][hidden] sums after attention
    Stamped* qkv;             ///< [rows], of each sequence sequence_words apart
    uint32_t* broken;
    uint32_t rows, hidden, terms, residual_event, sequence_words;
    ChunkShare carried;
    float epsilon;
  };
  using Shared = NormedShared<Kind>;

  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    return every_nth_row(args.weights, args.rows, args.hidden, 2 * args.hidden, warp, warps);
  }
  static DEVICE void run(Context& context, const Args& args) {
    Residual<Kind> residual{.sums = args.sums,
                            .terms = args.terms,
                            .event = {args.residual_event},
                            .rows = {},
                            .carry_to = args.carry_to,
                            .carried = args.carried,
                            .broken = args.broken,
                            .hidden = args.hidden};
    UNROLL
    for (uint32_t i = 0; i < Kind::kSequences; ++i)
      if (args.sums == nullptr) residual.rows[i] = args.table + size_t{args.token[i]} * args.hidden;
    Shared& shared = context.shared<Shared>();
    // Divisions, before anything is awaited; so in every stage.
    const uint32_t rows = stream(args, context.warp(), context.warps()).rows;
    float scales[Kind::kSequences];
    normed_input(context, shared, residual, args.norm, args.epsilon, scales);
    const uint32_t epoch = epoch_of(context);
    for_each_product<3>(
        context, vectors_of(shared.x), residual.chunks(), rows, [&](const LaneProduct& product) {
          const size_t row = size_t{product.sequence} * args.sequence_words + context.warp() +
                             product.row * context.warps();
          if (product.share == 0)
            store_flagged(args.qkv + row, product.value * of_sequence(scales, product.sequence),
                          epoch);
        });
  }
};

/// silu(gate) * up of some inner elements, as flagged halves. Weights: gate and up rows in turn.
template <class Kind>
struct GateUp {
  static constexpr const char* kName = "gate_up";
  struct Args {
    const BFloat16* weights;  ///< [rows][gate, up][hidden]
    const BFloat16* norm;     ///< [hidden]
    const uint64_t* sums;     ///< [sequences][hidden] the vectors
    uint64_t* carry_to;       ///< [sequences][hidden] sums after the feed-forward
    uint32_t* inner;          ///< [columns] flagged halves of the part, in the order of word_at, of
                              ///< each sequence sequence_words apart
    uint32_t* broken;
    uint32_t first, columns;  ///< element of the first row; elements of the part
    uint32_t rows, hidden, terms, residual_event, sequence_words;
    ChunkShare carried;
    float epsilon;
  };
  using Shared = NormedShared<Kind>;

  /// A pair of rows is one long row, in two units.
  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    return every_nth_row(args.weights, args.rows, 2 * args.hidden, 2 * args.hidden, warp, warps);
  }
  static DEVICE void run(Context& context, const Args& args) {
    const Residual<Kind> residual{.sums = args.sums,
                                  .terms = args.terms,
                                  .event = {args.residual_event},
                                  .rows = {},
                                  .carry_to = args.carry_to,
                                  .carried = args.carried,
                                  .broken = args.broken,
                                  .hidden = args.hidden};
    Shared& shared = context.shared<Shared>();
    const uint32_t units = stream(args, context.warp(), context.warps()).units();
    float scales[Kind::kSequences];
    normed_input(context, shared, residual, args.norm, args.epsilon, scales);
    const uint32_t epoch = epoch_of(context);
    const auto keep = [&](const LaneProduct& of, float gate, float up) {
      const float scale = of_sequence(scales, of.sequence);
      gate *= scale;
      const float value = gate / (1 + exponential(-gate)) * (up * scale);
      const uint32_t element = args.first + context.warp() + of.row / 2 * context.warps();
      store_flagged_half(args.inner + size_t{of.sequence} * args.sequence_words +
                             word_at(element, args.columns / kChunk),
                         value, epoch);
    };
    float gate = 0;
    for_each_product<2, true>(
        context, vectors_of(shared.x), residual.chunks(), units, [&](const LaneProduct& product) {
          if constexpr (Kind::kSequences == 1) {
            if (product.row % 2 == 0)
              gate = product.value;
            else if (warp::elect())
              keep(product, gate, product.value);
          } else {
            const float up = warp::shuffle(
                product.value, (warp::lane() + Kind::kSequences * product.sharers) % kWarpLanes);
            if (product.row % 2 == 0 && product.share == 0) keep(product, product.value, up);
          }
        });
  }
};

/// Some rows of the down projection times one part of the inner elements, added to the sums of
/// every rank.
template <class Kind>
struct ProjectDown {
  static constexpr const char* kName = "project_down";
  struct Args {
    const BFloat16* weights;  ///< [rows] of `columns` elements, row_elements apart
    const uint32_t* inner;    ///< [columns] flagged halves, in the order of word_at, of each
                              ///< sequence sequence_words apart
    SumsOfRanks<Kind> sums;   ///< [sequences][hidden]
    uint32_t* broken;
    uint32_t first_row, rows, columns, row_elements, hidden, inner_event, sequence_words;
  };
  struct Shared {
    HeldInput x[Kind::kSequences];
  };

  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    StreamedRows rows =
        every_nth_row(args.weights, args.rows, args.row_elements, 2 * args.columns, warp, warps);
    rows.row_bytes = 2 * args.columns;
    return rows;
  }
  static DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const uint32_t chunks = args.columns / kChunk;
    const uint32_t epoch = epoch_of(context);
    const uint32_t rows = stream(args, context.warp(), context.warps()).rows;
    if (warp::elect() && context.warp() * kWarpLanes < chunks)
      context.await_carried(Event{args.inner_event}, [&] {
        const uint32_t* const first = args.inner + context.warp() * kWarpLanes;
        return half_has_come(load<Order::relaxed, Scope::gpu>(first), epoch);
      });
    warp::sync();
    KEEP_ROLLED
    for (uint32_t chunk = context.thread(); chunk < chunks; chunk += context.threads())
      read_chunk(context, args, chunk, epoch, shared);
    context.sync();
    for_each_product<2>(
        context, vectors_of(shared.x), chunks, rows, [&](const LaneProduct& product) {
          const uint32_t row = args.first_row + context.warp() + product.row * context.warps();
          const uint32_t word = product.sequence * args.hidden + word_at(row, args.hidden / kChunk);
          for (uint32_t rank = product.share; rank < args.sums.ranks(); rank += product.sharers)
            args.sums.add(rank, word, product.value, args.broken);
        });
  }

 private:
  static DEVICE void read_chunk(Context& context, const Args& args, uint32_t chunk, uint32_t epoch,
                                Shared& shared) {
    constexpr uint32_t kAtOnce = Kind::kSequences < 4 ? Kind::kSequences : 4;
    const uint32_t chunks = args.columns / kChunk;
    UNROLL
    for (uint32_t first = 0; first < Kind::kSequences; first += kAtOnce) {
      uint32_t words[kAtOnce][kChunk];
      context.await_carried(Event{args.inner_event}, [&] {
        bool come = true;
        UNROLL
        for (uint32_t s = 0; s < kAtOnce; ++s) {
          const uint32_t* const from = args.inner + size_t{first + s} * args.sequence_words + chunk;
          UNROLL
          for (uint32_t i = 0; i < kChunk; ++i) {
            words[s][i] = load<Order::relaxed, Scope::gpu>(from + i * chunks);
            come &= half_has_come(words[s][i], epoch);
          }
        }
        return come;
      });
      UNROLL
      for (uint32_t s = 0; s < kAtOnce; ++s) {
        float values[kChunk];
        UNROLL
        for (uint32_t i = 0; i < kChunk; ++i) values[i] = flagged_half_value(words[s][i]);
        shared.x[first + s].put(chunk, values);
      }
    }
  }
};

}  // namespace tokenyard::megakernel
