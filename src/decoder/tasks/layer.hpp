/// The tasks of a dense layer whose stages pass on words instead of counters, for one token of each
/// sequence:
///
///     project_qkv -(flagged)-> attend_split -(flagged)-> project_attention -(sums)->
///     gate_up -(flagged)-> project_down -(sums)-> the next layer, or pick_logits
///
/// Every block has one task of each type. `blocks / heads` neighbouring blocks share a KV head: the
/// head's rows of QKV and the positions of its cache. The blocks of one part of the feed-forward
/// share its inner elements and its columns of the down projection. So only two of five stages
/// involve all blocks.
///
/// If a stage has fewer bands of rows than blocks, blocks without a band only carry their part of
/// the vector on (residual.hpp explains why they may do no more), or have no task.
#pragma once

#include "decoder/tasks/products.hpp"
#include "decoder/tasks/residual.hpp"

namespace tokenyard::megakernel {

template <class Kind>
struct VectorShared {
  NormedShared<Kind> normed;
  PartialProducts<Kind::kSequences> partial;
};

/// Computes rows of Q, K and V of one KV head, as flagged words.
template <class Kind>
struct ProjectQkv {
  static constexpr const char* kName = "project_qkv";
  struct Args {
    const BFloat16* weights;  ///< [rows][hidden] tiled
    const BFloat16* norm;     ///< [hidden]
    const uint64_t* sums;     ///< the vectors, or null in the first layer
    const BFloat16* table;    ///< [vocabulary][hidden] in the first layer
    const uint32_t* token;    ///< [sequences] in the first layer
    uint64_t* carry_to;       ///< sums after attention
    Stamped* qkv;             ///< [rows] per sequence, sequence_words apart
    uint32_t* broken;
    uint32_t bands, hidden, terms, residual_event, sequence_words;
    BlockShare carried;
    float epsilon;
  };
  using Shared = VectorShared<Kind>;

  static TOKENYARD_DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t) {
    return slice_of_bands(args.weights, args.bands, tiles_of(args.hidden), args.hidden, warp);
  }
  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    const Residual<Kind> residual{.sums = args.sums,
                                  .table = args.table,
                                  .token = args.token,
                                  .terms = args.terms,
                                  .event = {args.residual_event},
                                  .carry_to = args.carry_to,
                                  .carried = args.carried,
                                  .broken = args.broken,
                                  .hidden = args.hidden};
    if (args.bands > 0) multiply(context, args, residual);
    carry_on(context, residual);
  }

 private:
  static TOKENYARD_DEVICE void multiply(Context& context, const Args& args,
                                        const Residual<Kind>& residual) {
    Shared& shared = context.shared<Shared>();
    const auto x = normed_slice(context, shared.normed, residual, args.norm);
    const uint32_t epoch = epoch_of(context);
    for_each_product(context, shared.partial, x, args.hidden, args.bands,
                     [&](uint32_t row, uint32_t sequence, const RowPair& products) {
                       const float scale =
                           scale_of(context, shared.normed, sequence, args.hidden, args.epsilon);
                       Stamped* const to = args.qkv + size_t{sequence} * args.sequence_words + row;
                       store_flagged(to, products.even * scale, epoch);
                       store_flagged(to + 1, products.odd * scale, epoch);
                     });
  }
};

/// Computes silu(gate) * up of some inner elements, as flagged halves. Gate and up rows alternate.
template <class Kind>
struct GateUp {
  static constexpr const char* kName = "gate_up";
  struct Args {
    const BFloat16* weights;  ///< [elements][gate, up][hidden] tiled
    const BFloat16* norm;     ///< [hidden]
    const uint64_t* sums;     ///< the vectors
    uint64_t* carry_to;       ///< sums after the feed-forward
    uint32_t* inner;          ///< vectors of the part's elements: flagged halves
    uint32_t* broken;
    uint32_t first;  ///< first element within the part
    uint32_t bands, hidden, terms, residual_event;
    BlockShare carried;
    float epsilon;
  };
  using Shared = VectorShared<Kind>;

  static TOKENYARD_DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t) {
    return slice_of_bands(args.weights, args.bands, tiles_of(args.hidden), args.hidden, warp);
  }
  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    const Residual<Kind> residual{.sums = args.sums,
                                  .table = nullptr,
                                  .token = nullptr,
                                  .terms = args.terms,
                                  .event = {args.residual_event},
                                  .carry_to = args.carry_to,
                                  .carried = args.carried,
                                  .broken = args.broken,
                                  .hidden = args.hidden};
    if (args.bands > 0) multiply(context, args, residual);
    carry_on(context, residual);
  }

 private:
  static TOKENYARD_DEVICE void multiply(Context& context, const Args& args,
                                        const Residual<Kind>& residual) {
    Shared& shared = context.shared<Shared>();
    const auto x = normed_slice(context, shared.normed, residual, args.norm);
    const uint32_t epoch = epoch_of(context);
    for_each_product(
        context, shared.partial, x, args.hidden, args.bands,
        [&](uint32_t row, uint32_t sequence, const RowPair& products) {
          const float scale = scale_of(context, shared.normed, sequence, args.hidden, args.epsilon);
          const float gate = products.even * scale, up = products.odd * scale;
          const uint32_t element = args.first + row / 2;
          store_flagged_half(args.inner + VectorWords<Kind::kSequences>::at(
                                              sequence, element / kChunk, element % kChunk),
                             gate / (1 + exponential(-gate)) * up, epoch);
        });
  }
};

/// Computes some rows of the down projection times one part of the inner elements, and adds them to
/// the sums of every rank.
template <class Kind>
struct ProjectDown {
  static constexpr const char* kName = "project_down";
  struct Args {
    const BFloat16* weights;  ///< bands of tiles of the part's columns, band_tiles apart
    const uint32_t* inner;    ///< vectors of the part's elements: flagged halves
    SumsOfRanks<Kind> sums;
    uint32_t* broken;
    uint32_t first_row, bands, columns, band_tiles, inner_event;
  };
  struct Shared {
    SlicesShared<Kind::kSequences> slices;
    PartialProducts<Kind::kSequences> partial;
  };

  static TOKENYARD_DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t) {
    return slice_of_bands(args.weights, args.bands, args.band_tiles, args.columns, warp);
  }
  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const auto x = inner_slice(context, args, shared);
    for_each_product(context, shared.partial, x, args.columns, args.bands,
                     [&](uint32_t row, uint32_t sequence, const RowPair& products) {
                       args.sums.add(args.first_row + row, sequence, products, args.broken);
                     });
  }

 private:
  static constexpr uint32_t kSequences = Kind::kSequences;
  using Words = VectorWords<kSequences>;

  static TOKENYARD_DEVICE Fragments<true> inner_slice(Context& context, const Args& args,
                                                      Shared& shared) {
    const uint32_t epoch = epoch_of(context);
    const auto lane = chunks_of_lane<kSequences>(context.warp(), args.columns / kChunk);
    if (warp::elect())
      context.await_carried(Event{args.inner_event}, [&] {
        const uint32_t* const first = args.inner + Words::at(0, lane.chunk(0), 0);
        return half_has_come(load<Order::relaxed, Scope::gpu>(first), epoch);
      });
    warp::sync();
    SplitChunk read[kSequences];
    constexpr uint32_t kAtOnce = kTogether<Kind>;
    TOKENYARD_UNROLL
    for (uint32_t first = 0; first < kSequences; first += kAtOnce) {
      const uint32_t* chunks[kAtOnce];
      TOKENYARD_UNROLL
      for (uint32_t n = 0; n < kAtOnce; ++n)
        chunks[n] = args.inner + Words::at(lane.sequence(), lane.chunk(first + n), 0);
      uint32_t words[kAtOnce][kChunk];
      context.await_carried(Event{args.inner_event}, [&] {
        uint32_t missing = 0;
        TOKENYARD_UNROLL
        for (uint32_t n = 0; n < kAtOnce; ++n) {
          TOKENYARD_UNROLL
          for (uint32_t i = 0; i < kChunk; ++i) {
            words[n][i] = load<Order::relaxed, Scope::gpu>(chunks[n] + i * kWarpLanes);
            missing |= words[n][i] ^ epoch;
          }
        }
        return half_has_come(missing, 0);
      });
      TOKENYARD_UNROLL
      for (uint32_t n = 0; n < kAtOnce; ++n) {
        TOKENYARD_UNROLL
        for (uint32_t pair = 0; pair < kChunk / 2; ++pair) {
          const uint32_t both = words[n][2 * pair] >> 16 | (words[n][2 * pair + 1] & 0xffff0000u);
          read[first + n].high.word[pair] = lane.there(first + n) ? both : 0;
          read[first + n].low.word[pair] = 0;
        }
      }
    }
    return dealt<true>(shared.slices, context.warp(), lane, read);
  }
};

}  // namespace tokenyard::megakernel
