/// Attention of one token over a paged cache.
#pragma once

#include "megakernel/tasks/fields.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kHeadDimMax = 128, kGroupMax = 16;
inline constexpr uint32_t kNoWindow = UINT32_MAX;

/// Returns the earliest position that a token attends to.
TOKENYARD_DEVICE uint32_t window_begin(uint32_t position, uint32_t window) {
  return position >= window ? position - window + 1 : 0;
}

/// Returns the factor by which RMSNorm scales a head, by a warp.
TOKENYARD_DEVICE float norm_scale(const float* x, uint32_t dim, float epsilon) {
  float squares = 0;
  TOKENYARD_KEEP_ROLLED
  for (uint32_t d = warp::lane(); d < dim; d += kWarpLanes) squares += x[d] * x[d];
  return reciprocal_square_root(warp_sum(squares) / static_cast<float>(dim) + epsilon);
}

/// Attention of one KV head and the query heads that share it: normalises the new q and k (RMSNorm)
/// if norms are given, rotates them (RoPE, halves), appends k and v to the cache at the token's
/// position, and attends to the `window` latest positions up to it.
struct Attention {
  static constexpr const char* kName = "attention";
  struct Args {
    const float* q;     ///< [group][dim]
    const float* k;     ///< [dim]
    const float* v;     ///< [dim]
    BFloat16* k_cache;  ///< [pages][page_tokens][dim] of this KV head
    BFloat16* v_cache;
    const uint32_t* pages;     ///< [i] the page of positions page_tokens * i on
    const uint32_t* position;  ///< of the token
    float* out;                ///< [group][dim]
    uint32_t group, dim, page_tokens;
    const float* frequencies;  ///< [dim / 2] rotation of element pairs, radians per position
    const BFloat16* q_norm;    ///< [dim] weights, or null: q and k are not normalised
    const BFloat16* k_norm;    ///< [dim], or null together with q_norm
    uint32_t window;           ///< positions attended to, the token's included; kNoWindow: all
    float epsilon;             ///< of both norms
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, q),        TOKENYARD_FIELD(pointer, k),
      TOKENYARD_FIELD(pointer, v),        TOKENYARD_FIELD(pointer, k_cache),
      TOKENYARD_FIELD(pointer, v_cache),  TOKENYARD_FIELD(pointer, pages),
      TOKENYARD_FIELD(pointer, position), TOKENYARD_FIELD(pointer, out),
      TOKENYARD_FIELD(u32, group),        TOKENYARD_FIELD(u32, dim),
      TOKENYARD_FIELD(u32, page_tokens),  TOKENYARD_FIELD(pointer, frequencies),
      TOKENYARD_FIELD(pointer, q_norm),   TOKENYARD_FIELD(pointer, k_norm),
      TOKENYARD_FIELD(u32, window),       TOKENYARD_FIELD(f32, epsilon)};
  static void touches(Touches& touches, const Args& args) {
    touches.require(args.group > 0 && args.group <= kGroupMax, "group", "1 to 16 query heads",
                    args.group);
    touches.require(args.dim > 0 && args.dim % 2 == 0 && args.dim <= kHeadDimMax, "dim",
                    "an even number from 2 to 128", args.dim);
    touches.require(args.page_tokens > 0, "page_tokens", "at least 1", args.page_tokens);
    touches.require((args.q_norm == nullptr) == (args.k_norm == nullptr), "q_norm",
                    "both norms or neither", args.q_norm != nullptr);
    touches.require(args.window > 0, "window", "at least 1", args.window);
    touches.require(args.epsilon >= 0 && args.epsilon < 1, "epsilon", "a number from 0 to 1",
                    args.epsilon);
    if (args.q_norm != nullptr) {
      touches.reads("q_norm", args.q_norm, args.dim);
      touches.reads("k_norm", args.k_norm, args.dim);
    }
    const Extent page = Extent(args.page_tokens) * args.dim;
    touches.reads("q", args.q, Extent(args.group) * args.dim);
    touches.reads("k", args.k, args.dim);
    touches.reads("v", args.v, args.dim);
    touches.reads_among("pages", args.pages, 1);
    touches.reads("position", args.position, 1);
    touches.reads("frequencies", args.frequencies, args.dim / 2);
    touches.reads_among("k_cache", args.k_cache, page);
    touches.reads_among("v_cache", args.v_cache, page);
    touches.writes_among("k_cache", args.k_cache, page);
    touches.writes_among("v_cache", args.v_cache, page);
    touches.writes("out", args.out, Extent(args.group) * args.dim);
  }
  struct Shared {
    float q[kGroupMax][kHeadDimMax];
    float scales[kGroupMax + 1];  ///< of each query head and of the key, if there are norms
  };

  static TOKENYARD_DEVICE size_t row_of(const Args& args, uint32_t position) {
    const size_t page = args.pages[position / args.page_tokens];
    return (page * args.page_tokens + position % args.page_tokens) * args.dim;
  }

  /// A head's q or k, normalised on access.
  struct Head {
    const float* x;        ///< [dim]
    const BFloat16* norm;  ///< [dim], or null
    float scale;
    TOKENYARD_DEVICE float operator[](uint32_t d) const {
      return norm == nullptr ? x[d] : x[d] * scale * to_float(norm[d]);
    }
  };

  /// Returns element d of a rotated vector.
  static TOKENYARD_DEVICE float rotated(const Args& args, const Head& x, uint32_t d,
                                        uint32_t position) {
    const uint32_t half = args.dim / 2, i = d % half;
    const float angle = static_cast<float>(position) * args.frequencies[i];
    const float other = d < half ? -x[d + half] : x[d - half];
    return x[d] * cosine(angle) + other * sine(angle);
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    const uint32_t position = *args.position;
    if (args.q_norm != nullptr) find_scales(context, args, shared);
    const float scale = reciprocal_square_root(static_cast<float>(args.dim));
    for (uint32_t i = context.thread(); i < args.group * args.dim; i += context.threads()) {
      const uint32_t head = i / args.dim, d = i % args.dim;
      const Head q{args.q + head * args.dim, args.q_norm, shared.scales[head]};
      shared.q[head][d] = rotated(args, q, d, position) * scale;
    }
    const Head key{args.k, args.k_norm, shared.scales[args.group]};
    const size_t row = row_of(args, position);
    for (uint32_t d = context.thread(); d < args.dim; d += context.threads()) {
      args.k_cache[row + d] = to_bfloat16(rotated(args, key, d, position));
      args.v_cache[row + d] = to_bfloat16(args.v[d]);
    }
    context.sync();
    for (uint32_t head = context.warp(); head < args.group; head += context.warps())
      attend(args, shared.q[head], position + 1, args.out + head * args.dim);
  }

 private:
  /// Computes the scales, by all threads, one head per warp.
  static TOKENYARD_DEVICE void find_scales(Context& context, const Args& args, Shared& shared) {
    for (uint32_t head = context.warp(); head <= args.group; head += context.warps()) {
      const float* const x = head < args.group ? args.q + head * args.dim : args.k;
      const float scale = norm_scale(x, args.dim, args.epsilon);
      if (warp::lane() == 0) shared.scales[head] = scale;
    }
    context.sync();
  }

  static TOKENYARD_DEVICE float score(const Args& args, const float* q, uint32_t position) {
    const BFloat16* const k = args.k_cache + row_of(args, position);
    float sum = 0;
    for (uint32_t d = 0; d < args.dim; ++d) sum += q[d] * to_float(k[d]);
    return sum;
  }

  static TOKENYARD_DEVICE float warp_max(float value) {
    for (uint32_t mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      const float other = warp::shuffle_xor(value, mask);
      value = value > other ? value : other;
    }
    return value;
  }

  /// Attends by a warp, with an online softmax over 32 positions at a time.
  static TOKENYARD_DEVICE void attend(const Args& args, const float* q, uint32_t count,
                                      float* out) {
    constexpr uint32_t kShare = kHeadDimMax / kWarpLanes;
    float sums[kShare] = {};
    float highest = -1e30f, total = 0;
    for (uint32_t first = window_begin(count - 1, args.window); first < count;
         first += kWarpLanes) {
      const uint32_t position = first + warp::lane();
      const float mine = position < count ? score(args, q, position) : -1e30f;
      const float now = warp_max(mine);
      const float higher = now > highest ? now : highest;
      const float fade = exponential(highest - higher);
      const float weight = position < count ? exponential(mine - higher) : 0;
      highest = higher;
      total = total * fade + warp_sum(weight);
      for (float& sum : sums) sum *= fade;
      const uint32_t here = count - first < kWarpLanes ? count - first : kWarpLanes;
      for (uint32_t i = 0; i < here; ++i) {
        const float of_i = warp::shuffle(weight, i);
        const BFloat16* const v = args.v_cache + row_of(args, first + i);
        for (uint32_t s = 0; s < kShare; ++s) {
          const uint32_t d = s * kWarpLanes + warp::lane();
          if (d < args.dim) sums[s] += of_i * to_float(v[d]);
        }
      }
    }
    for (uint32_t s = 0; s < kShare; ++s) {
      const uint32_t d = s * kWarpLanes + warp::lane();
      if (d < args.dim) out[d] = sums[s] / total;
    }
  }
};

}  // namespace tokenyard::megakernel
