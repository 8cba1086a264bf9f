/// Attention of one token over a paged cache, with the positions of a KV head split over several
/// blocks. project_attention.hpp combines the parts.
///
/// Positions are always divided into the same number of sections, of which a split has contiguous
/// ones, and sums of sections are added pairwise between neighbours. The common factor of a
/// section's weights is a power of two, so no rounding occurs when sections change to another
/// factor. So results have the same bits for any number of splits.
#pragma once

#include "decoder/tasks/pairwise_sum.hpp"
#include "decoder/tasks/products.hpp"
#include "decoder/tasks/residual.hpp"
#include "megakernel/tasks/attention.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kSplitHeadsMax = 8;      ///< query heads per KV head
inline constexpr uint32_t kGroupColumnsMax = 256;  ///< elements of these heads together
inline constexpr uint32_t kScoresMax = 2048;       ///< per block
inline constexpr uint32_t kSections = 16;          ///< of all positions; a power of two

/// A split's exponent and total of a head, which accompany its part of the weighted sum: one
/// self-validating word, as wide as a single load of a GPU.
struct alignas(16) SplitWeight {
  int32_t exponent;  ///< of the power of two that scales the part and the total
  float total;
  uint32_t epoch, unused;
};

/// Returns 2^exponent for an exponent of at most 0; 0 if the result would be subnormal.
TOKENYARD_DEVICE float power_of_two(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(127 + (exponent > -127 ? exponent : -127))
                              << 23);
}

struct AttendSplit {
  static constexpr const char* kName = "attend_split";
  struct Args {
    const Stamped* qkv;  ///< [(heads + 2) * dim] of this KV head
    BFloat16* k_cache;   ///< [pages][page_tokens][dim] of this KV head
    BFloat16* v_cache;
    const uint32_t* pages;     ///< [i] the page of positions page_tokens * i on
    const uint32_t* position;  ///< of the token
    const float* rotation;     ///< [positions][cosines, sines][dim / 2]
    const BFloat16* bias;      ///< [(heads + 2) * dim] of this KV head, or null: none
    const BFloat16* q_norm;    ///< [dim] weights of RMSNorm, or null: no normalisation
    const BFloat16* k_norm;    ///< [dim], or null together with q_norm
    Stamped* part;             ///< [heads * dim] of this split, flagged
    SplitWeight* weights;      ///< [heads] of this split
    uint32_t heads, dim, page_tokens, split, splits;  ///< splits: a power of two up to kSections
    uint32_t rows_max;                                ///< positions per split, at most
    uint32_t window;  ///< positions attended to, the new one included; kNoWindow: all
    uint32_t qkv_event;
    float epsilon;  ///< of both norms
  };
  struct Shared {
    float raw[kGroupColumnsMax + 2 * kHeadDimMax];
    alignas(16) BFloat16 q[2][kGroupColumnsMax];  ///< [heads][dim] as BF16, and the remainder
    float scores[kScoresMax];                     ///< [heads][rows_max]; then weights
  };

  /// Positions of earlier tokens within the window that belong to a split. The new position belongs
  /// to the last section of the last split.
  struct Rows {
    uint32_t first, old, count;  ///< count: the new position included, if it is here
    uint32_t of_section, sections;
    /// Returns how many of these precede a section; all for the end of the last section.
    TOKENYARD_DEVICE uint32_t before(uint32_t section) const {
      if (section == sections) return count;
      return of_section * section < old ? of_section * section : old;
    }
  };
  static TOKENYARD_DEVICE Rows rows_of(const Args& args, uint32_t position) {
    const uint32_t begin = window_begin(position, args.window), earlier = position - begin;
    const uint32_t of_section = (earlier + kSections - 1) / kSections;
    const uint32_t sections = kSections / args.splits, each = of_section * sections;
    const uint32_t before = each * args.split < earlier ? each * args.split : earlier;
    const uint32_t old = each < earlier - before ? each : earlier - before;
    return {begin + before, old, old, of_section, sections};
  }
  static TOKENYARD_DEVICE size_t place_of(const Args& args, uint32_t position) {
    const size_t page = args.pages[position / args.page_tokens];
    return (page * args.page_tokens + position % args.page_tokens) * args.dim;
  }
  /// Returns the size of an area loaded ahead: one of keys, then one of values, then the position's
  /// rotation.
  static TOKENYARD_DEVICE uint32_t area_bytes(const Args& args) {
    return args.rows_max * args.dim * 2;
  }

  static TOKENYARD_DEVICE void ahead(Ahead& to, const Args& args) {
    const uint32_t now = *args.position, rotation_bytes = args.dim * sizeof(float);
    const Rows rows = rows_of(args, now);
    to.expect(2 * rows.count * args.dim * 2 + rotation_bytes);
    to.load(2 * area_bytes(args), args.rotation + size_t{now} * args.dim, rotation_bytes);
    for (uint32_t row = 0; row < rows.count;) {
      const uint32_t position = rows.first + row;
      const uint32_t in_page = args.page_tokens - position % args.page_tokens;
      const uint32_t here = in_page < rows.count - row ? in_page : rows.count - row;
      const size_t at = place_of(args, position);
      to.load(row * args.dim * 2, args.k_cache + at, here * args.dim * 2);
      to.load(area_bytes(args) + row * args.dim * 2, args.v_cache + at, here * args.dim * 2);
      row += here;
    }
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    // In flight while q is awaited, so nothing may use it before.
    const uint32_t position = *args.position;
    // Divisions are done before q is awaited.
    const Element first = element_of(context.thread(), args.dim);
    read_qkv(context, args, shared);
    context.sync();
    if (args.q_norm != nullptr) {
      normalise(context, args, shared);
      context.sync();
    }
    auto* const keys = reinterpret_cast<BFloat16*>(context.loaded_ahead());
    // Otherwise the run has failed and the result does not matter, but lanes must stay converged.
    const bool come = warp::all(keys != nullptr);
    BFloat16* const values = keys + args.rows_max * args.dim;
    const auto* const rotation =
        come ? reinterpret_cast<const float*>(values + args.rows_max * args.dim) : args.rotation;
    const float scale = reciprocal_square_root(static_cast<float>(args.dim));
    TOKENYARD_KEEP_ROLLED
    for (Element at = first; at.head < args.heads; at.advance(context.threads(), args.dim)) {
      const uint32_t column = at.head * args.dim + at.d;
      const float q = scale * rotated(args, rotation, shared.raw + at.head * args.dim, at.d);
      const BFloat16 most = to_bfloat16(q);
      shared.q[0][column] = most;
      shared.q[1][column] = to_bfloat16(q - to_float(most));
    }
    const bool has_new = come && args.split + 1 == args.splits;
    Rows rows = rows_of(args, position);
    const uint32_t old = come ? rows.old : 0;
    rows.old = old;
    rows.count = old + (has_new ? 1 : 0);
    if (has_new)
      add_new(context, args, shared, rotation, keys + old * args.dim, values + old * args.dim);
    context.sync();
    score(context, args, shared, keys, rows);
    context.sync();
    weigh(context, args, shared, rows);
    context.sync();
    TOKENYARD_KEEP_ROLLED
    for (uint32_t first_column = context.warp() * kTileRows; first_column < args.dim;
         first_column += context.warps() * kTileRows)
      weighted(context, args, shared, values + first_column, rows, first_column);
    if (has_new) append(context, args, position, keys + old * args.dim, values + old * args.dim);
  }

 private:
  /// Position of an element in the contiguous query heads.
  struct Element {
    uint32_t head, d;
    TOKENYARD_DEVICE void advance(uint32_t elements, uint32_t dim) {
      for (d += elements; d >= dim; d -= dim) ++head;
    }
  };
  static TOKENYARD_DEVICE Element element_of(uint32_t index, uint32_t dim) {
    return {index / dim, index % dim};
  }

  static TOKENYARD_DEVICE void read_qkv(Context& context, const Args& args, Shared& shared) {
    const uint32_t epoch = epoch_of(context);
    const uint32_t words = (args.heads + 2) * args.dim, step = context.threads();
    // Two at a time, so that the second does not wait for the first.
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = context.thread(); i < words; i += 2 * step) {
      const uint32_t next = i + step < words ? i + step : i;
      // In flight while words are awaited.
      const float bias = bias_of(args, i), next_bias = bias_of(args, next);
      Stamped word{}, next_word{};
      context.await_carried(Event{args.qkv_event}, [&] {
        word = load_flagged(args.qkv + i);
        next_word = load_flagged(args.qkv + next);
        return word.epoch == epoch && next_word.epoch == epoch;
      });
      shared.raw[i] = std::bit_cast<float>(word.value) + bias;
      shared.raw[next] = std::bit_cast<float>(next_word.value) + next_bias;
    }
  }
  static TOKENYARD_DEVICE float bias_of(const Args& args, uint32_t word) {
    return args.bias == nullptr ? 0 : to_float(args.bias[word]);
  }

  /// Applies RMSNorm to each query head and the key, one head per warp.
  static TOKENYARD_DEVICE void normalise(Context& context, const Args& args, Shared& shared) {
    TOKENYARD_KEEP_ROLLED
    for (uint32_t head = context.warp(); head <= args.heads; head += context.warps()) {
      float* const x = shared.raw + head * args.dim;
      const BFloat16* const norm = head < args.heads ? args.q_norm : args.k_norm;
      const float scale = norm_scale(x, args.dim, args.epsilon);
      TOKENYARD_KEEP_ROLLED
      for (uint32_t d = warp::lane(); d < args.dim; d += kWarpLanes)
        x[d] *= scale * to_float(norm[d]);
    }
  }

  static TOKENYARD_DEVICE float rotated(const Args& args, const float* rotation, const float* x,
                                        uint32_t d) {
    const uint32_t half = args.dim / 2, i = d < half ? d : d - half;
    const float other = d < half ? -x[d + half] : x[d - half];
    return x[d] * rotation[i] + other * rotation[half + i];
  }

  /// Stores the new token's key and value behind the keys and values loaded ahead.
  static TOKENYARD_DEVICE void add_new(Context& context, const Args& args, const Shared& shared,
                                       const float* rotation, BFloat16* key, BFloat16* value) {
    const float* const k = shared.raw + args.heads * args.dim;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t d = context.thread(); d < args.dim; d += context.threads()) {
      key[d] = to_bfloat16(rotated(args, rotation, k, d));
      value[d] = to_bfloat16(k[args.dim + d]);
    }
    fence_async();  // The area is loaded again after this task.
  }
  /// Appends them to the cache for later tokens, after all work that other tasks wait for.
  static TOKENYARD_DEVICE void append(Context& context, const Args& args, uint32_t position,
                                      const BFloat16* key, const BFloat16* value) {
    const size_t at = place_of(args, position);
    TOKENYARD_KEEP_ROLLED
    for (uint32_t d = context.thread(); d < args.dim; d += context.threads()) {
      args.k_cache[at + d] = key[d];
      args.v_cache[at + d] = value[d];
    }
  }

  /// Lane 4 * g + t has chunks t, t + 4, ... of q of head g, if it exists.
  static constexpr uint32_t kSteps = kHeadDimMax / kTileColumns;
  struct Queries {
    Bytes16 most[kSteps], rest[kSteps];
  };
  static TOKENYARD_DEVICE Queries queries_of(const Args& args, const Shared& shared) {
    const uint32_t head = warp::lane() / 4;
    Queries queries{};
    TOKENYARD_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint32_t at = (step * 4 + warp::lane() % 4) * kChunk;
      if (head >= args.heads || at >= args.dim) continue;
      const uint32_t from = head * args.dim + at;
      queries.most[step] = load_vector(reinterpret_cast<const Bytes16*>(shared.q[0] + from));
      queries.rest[step] = load_vector(reinterpret_cast<const Bytes16*>(shared.q[1] + from));
    }
    return queries;
  }

  /// Computes scores on tensor cores, eight positions per warp at a time: heads are rows, positions
  /// are columns.
  static TOKENYARD_DEVICE void score(Context& context, const Args& args, Shared& shared,
                                     const BFloat16* keys, const Rows& rows) {
    const Queries queries = queries_of(args, shared);
    const uint32_t head = warp::lane() / 4, t = warp::lane() % 4, steps = tiles_of(args.dim);
    TOKENYARD_KEEP_ROLLED
    for (uint32_t first = context.warp() * kTileRows; first < rows.count;
         first += context.warps() * kTileRows) {
      // Past the last position, the last one is repeated.
      const uint32_t row = first + head < rows.count ? first + head : rows.count - 1;
      const auto* const key = reinterpret_cast<const Bytes16*>(keys + row * args.dim);
      Bytes16 chunks[kSteps];
      TOKENYARD_UNROLL
      for (uint32_t step = 0; step < kSteps; ++step) {
        const uint32_t chunk = step * 4 + t;  // Past the head's end q is 0.
        chunks[step] = load_vector(key + (chunk < args.dim / kChunk ? chunk : 0));
      }
      float sums[2][4] = {};
      TOKENYARD_UNROLL
      for (uint32_t step = 0; step < kSteps; ++step)
        if (step < steps)
          multiply_split(sums, queries.most[step], queries.rest[step], chunks[step]);
      const RowPair scores = pair_of(sums);
      const uint32_t at = first + 2 * t;
      float* const to = shared.scores + head * args.rows_max + at;
      if (head < args.heads && at < rows.count) to[0] = scores.even;
      if (head < args.heads && at + 1 < rows.count) to[1] = scores.odd;
    }
  }

  /// Turns scores into weights, one head per warp.
  static TOKENYARD_DEVICE void weigh(Context& context, const Args& args, Shared& shared,
                                     const Rows& rows) {
    TOKENYARD_KEEP_ROLLED
    for (uint32_t head = context.warp(); head < args.heads; head += context.warps()) {
      float* const scores = shared.scores + head * args.rows_max;
      // One section per lane.
      int32_t exponent = INT32_MIN / 2;
      TOKENYARD_KEEP_ROLLED
      for (uint32_t section = 0; section < rows.sections; ++section) {
        const int32_t found = exponent_of(scores, rows.before(section), rows.before(section + 1));
        exponent = warp::lane() == section ? found : exponent;
      }
      const int32_t highest = warp::max(exponent);
      // Rounded as a product of its own: a GPU might fuse it with the subtraction otherwise.
      const float shift = static_cast<float>(exponent) * kLogOf2;
      const float fade = power_of_two(exponent - highest);
      float total = 0;
      PairwiseSum totals;
      // Sums over the warp of several sections are computed together.
      constexpr uint32_t kAtOnce = 4;
      TOKENYARD_KEEP_ROLLED
      for (uint32_t first = 0; first < rows.sections; first += kAtOnce) {
        float parts[kAtOnce];
        TOKENYARD_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t section = first + i < rows.sections ? first + i : rows.sections - 1;
          const float shift_of = warp::shuffle(shift, section);
          const float fade_of = warp::shuffle(fade, section);
          parts[i] = first + i < rows.sections
                         ? weigh_section(scores, rows.before(section), rows.before(section + 1),
                                         shift_of, fade_of)
                         : 0;
        }
        TOKENYARD_UNROLL
        for (uint32_t mask = kWarpLanes / 2; mask > 0; mask /= 2) {
          TOKENYARD_UNROLL
          for (uint32_t i = 0; i < kAtOnce; ++i) parts[i] += warp::shuffle_xor(parts[i], mask);
        }
        TOKENYARD_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i)
          if (first + i < rows.sections) total = totals.with(first + i, parts[i]);
      }
      // Relaxed: the word carries all the information.
      if (warp::elect())
        store<Order::relaxed, Scope::gpu>(
            args.weights + head,
            SplitWeight{
                .exponent = highest, .total = total, .epoch = epoch_of(context), .unused = 0});
    }
  }

  /// Returns, by a warp, an exponent that brings the largest weight of the rows near 1.
  static TOKENYARD_DEVICE int32_t exponent_of(const float* scores, uint32_t begin, uint32_t end) {
    // Bounds far beyond all valid scores, for NaN and infinity.
    constexpr float kLowest = -1e6f, kHighest = 1e6f;
    float highest = kLowest;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = begin + warp::lane(); i < end; i += kWarpLanes)
      highest = scores[i] > highest ? scores[i] : highest;
    // Each lane's own exponent first: the largest score has the largest one.
    return warp::max(
        static_cast<int32_t>((highest < kHighest ? highest : kHighest) * (1 / kLogOf2)));
  }

  /// Turns a section's scores into weights, by a warp, and returns this lane's part of their sum.
  static TOKENYARD_DEVICE float weigh_section(float* scores, uint32_t begin, uint32_t end,
                                              float shift, float fade) {
    float total = 0;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = begin + warp::lane(); i < end; i += kWarpLanes) {
      scores[i] = exponential(scores[i] - shift) * fade;
      total += scores[i];
    }
    return total;
  }

  /// Computes eight columns of the weighted sums of all heads, by a warp on tensor cores: heads are
  /// rows, and the sums run over positions, 32 of a section at a time. Publishes them as flagged
  /// words.
  static TOKENYARD_DEVICE void weighted(Context& context, const Args& args, const Shared& shared,
                                        const BFloat16* values, const Rows& rows, uint32_t column) {
    const uint32_t head = warp::lane() / 4, t = warp::lane() % 4;
    // Rows of heads that do not exist repeat the last head and are not published.
    const float* const weights =
        shared.scores + (head < args.heads ? head : args.heads - 1) * args.rows_max;
    PairwiseSum even_sums, odd_sums;
    RowPair sum{};
    TOKENYARD_KEEP_ROLLED
    for (uint32_t section = 0; section < rows.sections; ++section) {
      const uint32_t end = rows.before(section + 1);
      float sums[2][4] = {};
      TOKENYARD_KEEP_ROLLED
      for (uint32_t first = rows.before(section); first < end; first += kWarpLanes) {
        const uint32_t row = first + warp::lane() < end ? first + warp::lane() : end - 1;
        uint32_t columns[4];
        warp::load_transposed(columns,
                              reinterpret_cast<const Bytes16*>(values + size_t{row} * args.dim));
        TOKENYARD_UNROLL
        for (uint32_t half = 0; half < 2; ++half) {
          uint32_t a[4];
          TOKENYARD_UNROLL
          for (uint32_t i = 0; i < 2; ++i) {
            const uint32_t at = first + 16 * half + 8 * i + 2 * t;
            const float low = at < end ? weights[at] : 0;
            const float high = at + 1 < end ? weights[at + 1] : 0;
            a[2 * i] = to_bfloat16_pair(low, high);
            a[2 * i + 1] = rest_of(low, high, a[2 * i]);
          }
          const uint32_t b[2] = {columns[2 * half], columns[2 * half + 1]};
          warp::multiply_add(sums[half], a, b);
        }
      }
      const RowPair of_section = pair_of(sums);
      sum = {even_sums.with(section, of_section.even), odd_sums.with(section, of_section.odd)};
    }
    if (head >= args.heads) return;
    Stamped* const to = args.part + head * args.dim + column + 2 * t;
    store_flagged(to, sum.even, epoch_of(context));
    store_flagged(to + 1, sum.odd, epoch_of(context));
  }

  static constexpr float kLogOf2 = 0.693147180559945f;
};

}  // namespace tokenyard::megakernel
