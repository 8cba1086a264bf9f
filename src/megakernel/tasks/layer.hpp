/// The tasks of a dense layer whose stages hand on words instead of counters, for one token:
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
    const uint64_t* sums;     ///< [hidden] the vector, or null in the first layer
    const BFloat16* table;    ///< [vocabulary][hidden] of the first layer
    const uint32_t* token;    ///< likewise
    uint64_t* carry_to;       ///< [hidden] sums after attention
    Stamped* qkv;             ///< [rows]
    uint32_t* broken;
    uint32_t rows, hidden, terms, residual_event;
    ChunkShare carried;
    float epsilon;
  };
  using Shared = NormedShared;

  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    return every_nth_row(args.weights, args.rows, args.hidden, 2 * args.hidden, warp, warps);
  }
  static DEVICE void run(Context& context, const Args& args) {
    const BFloat16* const row =
        args.sums == nullptr ? args.table + size_t{*args.token} * args.hidden : nullptr;
    const Residual residual{.sums = args.sums,
                            .terms = args.terms,
                            .event = {args.residual_event},
                            .row = row,
                            .carry_to = args.carry_to,
                            .carried = args.carried,
                            .broken = args.broken,
                            .hidden = args.hidden};
    Shared& shared = context.shared<Shared>();
    // Divisions, before anything is awaited; so in every stage.
    const uint32_t rows = stream(args, context.warp(), context.warps()).rows;
    const float scale = normed_input<Kind>(context, shared, residual, args.norm, args.epsilon);
    const uint32_t epoch = epoch_of(context);
    for_each_product<3>(context, shared.x, residual.chunks(), rows, [&](uint32_t i, float product) {
      if (warp::elect())
        store_flagged(args.qkv + context.warp() + i * context.warps(), product * scale, epoch);
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
    const uint64_t* sums;     ///< [hidden] the vector
    uint64_t* carry_to;       ///< [hidden] sums after the feed-forward
    uint32_t* inner;          ///< [columns] flagged halves of the part, in the order of word_at
    uint32_t* broken;
    uint32_t first, columns;  ///< element of the first row; elements of the part
    uint32_t rows, hidden, terms, residual_event;
    ChunkShare carried;
    float epsilon;
  };
  using Shared = NormedShared;

  /// A pair of rows is one long row, in two units.
  static DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    return every_nth_row(args.weights, args.rows, 2 * args.hidden, 2 * args.hidden, warp, warps);
  }
  static DEVICE void run(Context& context, const Args& args) {
    const Residual residual{.sums = args.sums,
                            .terms = args.terms,
                            .event = {args.residual_event},
                            .row = nullptr,
                            .carry_to = args.carry_to,
                            .carried = args.carried,
                            .broken = args.broken,
                            .hidden = args.hidden};
    Shared& shared = context.shared<Shared>();
    const uint32_t units = stream(args, context.warp(), context.warps()).units();
    const float scale = normed_input<Kind>(context, shared, residual, args.norm, args.epsilon);
    const uint32_t epoch = epoch_of(context);
    float gate = 0;
    for_each_product<2>(
        context, shared.x, residual.chunks(), units, [&](uint32_t i, float product) {
          if (i % 2 == 0) {
            gate = product * scale;
          } else if (warp::elect()) {
            const float value = gate / (1 + exponential(-gate)) * (product * scale);
            const uint32_t element = args.first + context.warp() + i / 2 * context.warps();
            store_flagged_half(args.inner + word_at(element, args.columns / kChunk), value, epoch);
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
    const uint32_t* inner;    ///< [columns] flagged halves, in the order of word_at
    SumsOfRanks<Kind> sums;   ///< [hidden]
    uint32_t* broken;
    uint32_t first_row, rows, columns, row_elements, hidden, inner_event;
  };
  using Shared = HeldInput;

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
    for_each_product<2>(context, shared, chunks, rows, [&](uint32_t i, float product) {
      const uint32_t row = args.first_row + context.warp() + i * context.warps();
      args.sums.add(warp::lane(), word_at(row, args.hidden / kChunk), product, args.broken);
    });
  }

 private:
  static DEVICE void read_chunk(Context& context, const Args& args, uint32_t chunk, uint32_t epoch,
                                Shared& shared) {
    const uint32_t* const from = args.inner + chunk;
    const uint32_t chunks = args.columns / kChunk;
    uint32_t words[kChunk];
    context.await_carried(Event{args.inner_event}, [&] {
      bool come = true;
      UNROLL
      for (uint32_t i = 0; i < kChunk; ++i) {
        words[i] = load<Order::relaxed, Scope::gpu>(from + i * chunks);
        come &= half_has_come(words[i], epoch);
      }
      return come;
    });
    float values[kChunk];
    UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) values[i] = flagged_half_value(words[i]);
    shared.put(chunk, values);
  }
};

}  // namespace tokenyard::megakernel
