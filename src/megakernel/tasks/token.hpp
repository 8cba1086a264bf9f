/// The two ends of a decode step: from a token to a vector, and from logits to the next token.
#pragma once

#include "megakernel/tasks/fields.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

/// Computes x = table[token].
struct Embed {
  static constexpr const char* kName = "embed";
  struct Args {
    const BFloat16* table;  ///< [vocabulary][hidden]
    const uint32_t* token;
    float* x;  ///< [hidden]
    uint32_t hidden;
  };
  static constexpr ArgField kFields[] = {TOKENYARD_FIELD(pointer, table),
                                         TOKENYARD_FIELD(pointer, token),
                                         TOKENYARD_FIELD(pointer, x), TOKENYARD_FIELD(u32, hidden)};
  static void touches(Touches& touches, const Args& args) {
    touches.reads("token", args.token, 1);
    touches.reads_among("table", args.table, args.hidden);
    touches.writes("x", args.x, args.hidden);
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    const BFloat16* const row = args.table + size_t{*args.token} * args.hidden;
    for (uint32_t i = context.thread(); i < args.hidden; i += context.threads())
      args.x[i] = to_float(row[i]);
  }
};

/// The best of some logits, as tasks and ranks pass it on.
struct Best {
  float value;
  uint32_t token;  ///< kNoToken if one of the logits is NaN
};
inline constexpr uint32_t kNoToken = UINT32_MAX;
inline constexpr uint32_t kStopTokensMax = 8;
inline constexpr uint32_t kNoRow = UINT32_MAX - 1;  ///< the token of an empty set of logits

TOKENYARD_DEVICE Best of_logit(float value, uint32_t token) {
  return {value, value == value ? token : kNoToken};
}

/// Returns the larger of two; of equals the one with the smaller token. NaN wins over everything.
TOKENYARD_DEVICE Best better(const Best& a, const Best& b) {
  if (a.token == kNoToken || b.token == kNoRow) return a;
  if (b.token == kNoToken || a.token == kNoRow) return b;
  const bool first = a.value > b.value || (a.value == b.value && a.token < b.token);
  return first ? a : b;
}

struct BestShared {
  Best of_warp[kComputeWarpsMax];
};

/// Returns the best of this thread's share of `count` parts.
TOKENYARD_DEVICE Best best_of_share(const Context& context, const Best* parts, uint32_t count) {
  Best best{0, kNoRow};
  for (uint32_t i = context.thread(); i < count; i += context.threads())
    best = better(best, parts[i]);
  return best;
}

/// Clears this thread's share of a stage's sums, once all tasks have read them. Relaxed: the event
/// that the task signals precedes the next iteration's terms.
template <Scope scope>
TOKENYARD_DEVICE void clear_sums(const Context& context, uint64_t* sums, uint32_t count) {
  for (uint32_t i = context.thread(); i < count; i += context.threads())
    store<Order::relaxed, scope>(sums + i, 0);
}

/// Returns the best of all lanes, by a warp.
TOKENYARD_DEVICE Best best_of_warp(Best best) {
  for (uint32_t mask = kWarpLanes / 2; mask > 0; mask /= 2)
    best = better(best, {warp::shuffle_xor(best.value, mask), warp::shuffle_xor(best.token, mask)});
  return best;
}
/// Returns the best of `count` parts, `stride` elements apart, by a warp.
TOKENYARD_DEVICE Best best_of_parts(const Best* parts, uint32_t count, uint32_t stride) {
  Best best{0, kNoRow};
  for (uint32_t i = warp::lane(); i < count; i += kWarpLanes)
    best = better(best, parts[i * stride]);
  return best_of_warp(best);
}
/// Returns to thread 0 the best of all threads' values. Called by all threads.
TOKENYARD_DEVICE Best best_of_block(Context& context, BestShared& shared, Best best) {
  best = best_of_warp(best);
  if (warp::lane() == 0) shared.of_warp[context.warp()] = best;
  context.sync();
  for (uint32_t warp = 0; warp < context.warps() && context.thread() == 0; ++warp)
    best = better(best, shared.of_warp[warp]);
  return best;
}

/// Finds the best of `count` logits.
struct PickBest {
  static constexpr const char* kName = "pick_best";
  struct Args {
    const float* logits;  ///< [count] of the tokens from first_token on
    Best* best;
    uint32_t count, first_token;
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, logits), TOKENYARD_FIELD(pointer, best), TOKENYARD_FIELD(u32, count),
      TOKENYARD_FIELD(u32, first_token)};
  static void touches(Touches& touches, const Args& args) {
    touches.reads("logits", args.logits, args.count);
    touches.writes("best", args.best, 1);
    touches.require(uint64_t{args.first_token} + args.count <= kNoRow, "first_token",
                    "tokens below 2^32 - 2", args.first_token);
  }
  using Shared = BestShared;

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Best best{0, kNoRow};
    for (uint32_t i = context.thread(); i < args.count; i += context.threads())
      best = better(best, of_logit(args.logits[i], args.first_token + i));
    best = best_of_block(context, context.shared<Shared>(), best);
    if (context.thread() == 0) *args.best = best;
  }
};

/// State of a sequence after a step.
enum class SequenceStatus : uint32_t { goes_on, stopped, cache_full, not_a_number };

/// Returns the status after a step that found `best` and puts `token` at `position`; `published` if
/// the prompt gave the token. `args`: those of the hook.
template <class Args>
TOKENYARD_DEVICE SequenceStatus status_after(const Args& args, const Best& best, bool published,
                                             uint32_t token, uint32_t position) {
  // Relaxed: written before the events that the task awaited.
  const bool broken = args.broken != nullptr && load<Order::relaxed, Scope::gpu>(args.broken) != 0;
  if (best.token == kNoToken || broken) return SequenceStatus::not_a_number;
  bool stops = false;
  TOKENYARD_UNROLL
  for (const uint32_t stop : args.stop_tokens) stops |= token == stop;
  if (!published && stops) return SequenceStatus::stopped;
  return position >= args.positions_max ? SequenceStatus::cache_full : SequenceStatus::goes_on;
}

/// The loop's hook: takes the best of all parts as the next token, stores it, and ends the loop at
/// a stop token, a full cache, or logits that are NaN. Clears the last stage's sums if stages pass
/// words on.
struct NextToken {
  static constexpr const char* kName = "next_token";
  using Status = SequenceStatus;
  struct Args {
    const Best* parts;       ///< [part_count]
    uint32_t* token;         ///< of the next iteration
    uint32_t* position;      ///< of the next iteration
    uint32_t* tokens;        ///< [positions_max + 1] the sequence, by position
    const uint32_t* prompt;  ///< [prompt_tokens]
    uint32_t* status;        ///< a Status
    uint64_t* sums;          ///< [sum_count] to clear, or null
    const uint32_t* broken;  ///< 1 if a value could not be added to sums; or null
    uint32_t sum_count;
    uint32_t part_count, positions_max, prompt_tokens;
    uint32_t stop_tokens[kStopTokensMax];  ///< each kNoToken: none
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, parts),      TOKENYARD_FIELD(pointer, token),
      TOKENYARD_FIELD(pointer, position),   TOKENYARD_FIELD(pointer, tokens),
      TOKENYARD_FIELD(pointer, prompt),     TOKENYARD_FIELD(pointer, status),
      TOKENYARD_FIELD(pointer, sums),       TOKENYARD_FIELD(pointer, broken),
      TOKENYARD_FIELD(u32, sum_count),      TOKENYARD_FIELD(u32, part_count),
      TOKENYARD_FIELD(u32, positions_max),  TOKENYARD_FIELD(u32, prompt_tokens),
      TOKENYARD_FIELD(u32, stop_tokens[0]), TOKENYARD_FIELD(u32, stop_tokens[1]),
      TOKENYARD_FIELD(u32, stop_tokens[2]), TOKENYARD_FIELD(u32, stop_tokens[3]),
      TOKENYARD_FIELD(u32, stop_tokens[4]), TOKENYARD_FIELD(u32, stop_tokens[5]),
      TOKENYARD_FIELD(u32, stop_tokens[6]), TOKENYARD_FIELD(u32, stop_tokens[7])};
  static void touches(Touches& touches, const Args& args) {
    touches.reads("parts", args.parts, args.part_count);
    touches.reads("position", args.position, 1);
    touches.reads("prompt", args.prompt, args.prompt_tokens);
    if (args.broken != nullptr) touches.reads("broken", args.broken, 1);
    touches.writes("sums", args.sums, args.sum_count);
    touches.writes("tokens", args.tokens, Extent(args.positions_max) + 1);
    touches.writes("status", args.status, 1);
    touches.writes("token", args.token, 1);
    touches.writes("position", args.position, 1);
  }

  using Shared = BestShared;

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Best best = best_of_share(context, args.parts, args.part_count);
    clear_sums<Scope::gpu>(context, args.sums, args.sum_count);
    best = best_of_block(context, context.shared<Shared>(), best);
    if (context.thread() == 0) decide(context, args, best);
  }

 private:
  static TOKENYARD_DEVICE void decide(Context& context, const Args& args, const Best& best) {
    const uint32_t position = *args.position + 1;
    // Within the prompt, the prompt gives the next token, whatever the model predicts.
    const bool published = position < args.prompt_tokens;
    const uint32_t token = published ? args.prompt[position] : best.token;
    const Status status = status_after(args, best, published, token, position);
    // Past the cache only if the position was already when the step began.
    if (status != Status::not_a_number && position <= args.positions_max)
      args.tokens[position] = token;
    *args.status = static_cast<uint32_t>(status);
    if (status != Status::goes_on) {
      context.end_loop();
      return;
    }
    *args.token = token;
    *args.position = position;
  }
};

}  // namespace tokenyard::megakernel
