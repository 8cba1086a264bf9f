/// The mixture-of-experts feed-forward layer of one token: choice of the experts, and their work.
/// The weights to load depend on the token, so nothing is streamed ahead.
#pragma once

#include "megakernel/tasks/fields.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kTopkMax = 8;

/// Chooses the topk experts with the highest scores, the first of equals. Weights are the softmax
/// of these scores, or their part of the softmax of all scores.
struct RouteToken {
  static constexpr const char* kName = "route_token";
  struct Args {
    const float* scores;  ///< [experts]
    uint32_t* picks;      ///< [topk]
    float* weights;       ///< [topk]
    uint32_t experts, topk;
    uint32_t normalised;  ///< 1: the weights sum to 1; 0: all experts' weights would
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, scores),  TOKENYARD_FIELD(pointer, picks),
      TOKENYARD_FIELD(pointer, weights), TOKENYARD_FIELD(u32, experts),
      TOKENYARD_FIELD(u32, topk),        TOKENYARD_FIELD(u32, normalised)};
  static void touches(Touches& touches, const Args& args) {
    touches.require(args.topk > 0 && args.topk <= kTopkMax && args.topk <= args.experts, "topk",
                    "1 to 8, and at most as many as there are experts", args.topk);
    touches.require(args.normalised <= 1, "normalised", "0 or 1", args.normalised);
    touches.reads("scores", args.scores, args.experts);
    touches.writes("picks", args.picks, args.topk);
    touches.writes("weights", args.weights, args.topk);
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    if (context.thread() != 0) return;
    float values[kTopkMax];
    uint32_t picks[kTopkMax];
    for (uint32_t n = 0; n < args.topk; ++n) {
      picks[n] = UINT32_MAX;
      for (uint32_t expert = 0; expert < args.experts; ++expert) {
        bool taken = false;
        for (uint32_t before = 0; before < n; ++before) taken |= picks[before] == expert;
        if (!taken && (picks[n] == UINT32_MAX || args.scores[expert] > values[n])) {
          picks[n] = expert;
          values[n] = args.scores[expert];
        }
      }
    }
    float total = 0;
    for (uint32_t n = 0; n < (args.normalised != 0 ? args.topk : args.experts); ++n)
      total += exponential((args.normalised != 0 ? values[n] : args.scores[n]) - values[0]);
    for (uint32_t n = 0; n < args.topk; ++n) {
      args.picks[n] = picks[n];
      args.weights[n] = exponential(values[n] - values[0]) / total;
    }
  }
};

/// Computes h[n][i], as GatedLinear does, for some rows i of the n-th chosen expert.
struct ExpertGated {
  static constexpr const char* kName = "expert_gated";
  struct Args {
    const BFloat16* weights;  ///< [experts][rows of an expert][gate, up][columns]
    const float* x;           ///< [columns]
    const BFloat16* norm;     ///< [columns], or null
    const uint32_t* picks;    ///< [topk]
    float* h;                 ///< [topk][expert_rows]
    uint32_t pick, first_row, rows, expert_rows, columns;
    float epsilon;
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, weights), TOKENYARD_FIELD(pointer, x),
      TOKENYARD_FIELD(pointer, norm),    TOKENYARD_FIELD(pointer, picks),
      TOKENYARD_FIELD(pointer, h),       TOKENYARD_FIELD(u32, pick),
      TOKENYARD_FIELD(u32, first_row),   TOKENYARD_FIELD(u32, rows),
      TOKENYARD_FIELD(u32, expert_rows), TOKENYARD_FIELD(u32, columns),
      TOKENYARD_FIELD(f32, epsilon)};
  static void touches(Touches& touches, const Args& args) {
    touch_row_input(touches, args);
    const uint64_t rows_end = uint64_t{args.first_row} + args.rows;
    touches.require(rows_end <= args.expert_rows, "rows",
                    "rows of an expert: first_row and rows together at most expert_rows",
                    static_cast<double>(rows_end));
    touches.reads("picks", element_at(args.picks, args.pick), 1);
    if (args.rows == 0) return;
    touches.reads_among("weights", args.weights, Extent(args.expert_rows) * 2 * args.columns);
    touches.aligned();
    touches.writes("h", element_at(args.h, size_t{args.pick} * args.expert_rows + args.first_row),
                   args.rows);
  }
  using Shared = RowInput;

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    load_input(context, shared, args.x, args.norm, args.columns, args.epsilon);
    const size_t first = size_t{args.picks[args.pick]} * args.expert_rows + args.first_row;
    for (uint32_t row = context.warp(); row < args.rows; row += context.warps()) {
      const BFloat16* const pair = args.weights + (first + row) * 2 * args.columns;
      const float gate = warp_sum(lane_dot(pair, shared.x, args.columns));
      const float up = warp_sum(lane_dot(pair + args.columns, shared.x, args.columns));
      if (warp::lane() == 0)
        args.h[size_t{args.pick} * args.expert_rows + args.first_row + row] =
            gate / (1 + exponential(-gate)) * up;
    }
  }
};

/// Computes y[i] = residual[i] + sum over picks n of pick_weights[n] * (weights[picks[n]][i] .
/// h[n]).
struct ExpertDown {
  static constexpr const char* kName = "expert_down";
  struct Args {
    const BFloat16* weights;    ///< [experts][hidden][expert_rows]
    const float* h;             ///< [topk][expert_rows]
    const uint32_t* picks;      ///< [topk]
    const float* pick_weights;  ///< [topk]
    const float* residual;      ///< [hidden], or null
    float* y;                   ///< [hidden]
    uint32_t topk, first_row, rows, expert_rows, hidden;
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, weights),  TOKENYARD_FIELD(pointer, h),
      TOKENYARD_FIELD(pointer, picks),    TOKENYARD_FIELD(pointer, pick_weights),
      TOKENYARD_FIELD(pointer, residual), TOKENYARD_FIELD(pointer, y),
      TOKENYARD_FIELD(u32, topk),         TOKENYARD_FIELD(u32, first_row),
      TOKENYARD_FIELD(u32, rows),         TOKENYARD_FIELD(u32, expert_rows),
      TOKENYARD_FIELD(u32, hidden)};
  static void touches(Touches& touches, const Args& args) {
    const uint64_t rows_end = uint64_t{args.first_row} + args.rows;
    touches.require(rows_end <= args.hidden, "rows",
                    "rows of the result: first_row and rows together at most hidden",
                    static_cast<double>(rows_end));
    touches.require(args.expert_rows % 8 == 0, "expert_rows", "a multiple of 8", args.expert_rows);
    if (args.rows == 0) return;
    if (args.topk > 0) {
      touches.reads_among("weights", args.weights, Extent(args.hidden) * args.expert_rows);
      touches.aligned();
    }
    touches.reads("h", args.h, Extent(args.topk) * args.expert_rows);
    touches.reads("picks", args.picks, args.topk);
    touches.reads("pick_weights", args.pick_weights, args.topk);
    if (args.residual != nullptr)
      touches.reads("residual", element_at(args.residual, args.first_row), args.rows);
    touches.writes("y", element_at(args.y, args.first_row), args.rows);
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    for (uint32_t i = context.warp(); i < args.rows; i += context.warps()) {
      const uint32_t row = args.first_row + i;
      float sum = args.residual == nullptr ? 0 : args.residual[row];
      for (uint32_t n = 0; n < args.topk; ++n) {
        const size_t at = (size_t{args.picks[n]} * args.hidden + row) * args.expert_rows;
        const float product = warp_sum(
            lane_dot(args.weights + at, args.h + size_t{n} * args.expert_rows, args.expert_rows));
        sum += args.pick_weights[n] * product;
      }
      if (warp::lane() == 0) args.y[row] = sum;
    }
  }
};

}  // namespace tokenyard::megakernel
