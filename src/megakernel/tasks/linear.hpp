/// Products of matrix rows with a vector, with weights streamed ahead.
#pragma once

#include "megakernel/tasks/fields.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

/// Computes y[r] = residual[r] + weights[r] . rms_norm(x) for rows [0, rows) of its pointers.
struct Linear {
  static constexpr const char* kName = "linear";
  struct Args {
    const BFloat16* weights;  ///< [rows][columns]
    const float* x;           ///< [columns]
    const BFloat16* norm;     ///< [columns], or null: x is not normalised
    const float* residual;    ///< [rows], or null: 0
    float* y;                 ///< [rows]
    uint32_t rows, columns;   ///< columns: a multiple of 8, at most kColumnsMax
    uint32_t unit_bytes;      ///< that of the megakernel
    float epsilon;
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, weights), TOKENYARD_FIELD(pointer, x),
      TOKENYARD_FIELD(pointer, norm),    TOKENYARD_FIELD(pointer, residual),
      TOKENYARD_FIELD(pointer, y),       TOKENYARD_FIELD(u32, rows),
      TOKENYARD_FIELD(u32, columns),     TOKENYARD_FIELD(u32, unit_bytes),
      TOKENYARD_FIELD(f32, epsilon)};
  static void touches(Touches& touches, const Args& args) {
    touch_row_input(touches, args);
    touches.unit_bytes("unit_bytes", args.unit_bytes);
    touches.streams("weights", args.weights, Extent(args.rows) * args.columns);
    if (args.residual != nullptr) touches.reads("residual", args.residual, args.rows);
    touches.writes("y", args.y, args.rows);
  }
  using Shared = RowInput;

  static TOKENYARD_DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    return every_nth_row(args.weights, args.rows, args.columns, args.unit_bytes, warp, warps);
  }
  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    load_input(context, shared, args.x, args.norm, args.columns, args.epsilon);
    for (uint32_t row = context.warp(); row < args.rows; row += context.warps()) {
      const float product = streamed_dot(context, args.columns, args.unit_bytes, shared.x);
      if (warp::lane() == 0)
        args.y[row] = product + (args.residual == nullptr ? 0.0f : args.residual[row]);
    }
  }
};

/// Computes h[i] = silu(gate_i . x) * (up_i . x), x normalised. Gate and up rows alternate.
struct GatedLinear {
  static constexpr const char* kName = "gated_linear";
  struct Args {
    const BFloat16* weights;  ///< [rows][gate, up][columns]
    const float* x;           ///< [columns]
    const BFloat16* norm;     ///< [columns], or null
    float* h;                 ///< [rows]
    uint32_t rows, columns, unit_bytes;
    float epsilon;
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, weights), TOKENYARD_FIELD(pointer, x),
      TOKENYARD_FIELD(pointer, norm),    TOKENYARD_FIELD(pointer, h),
      TOKENYARD_FIELD(u32, rows),        TOKENYARD_FIELD(u32, columns),
      TOKENYARD_FIELD(u32, unit_bytes),  TOKENYARD_FIELD(f32, epsilon)};
  static void touches(Touches& touches, const Args& args) {
    touch_row_input(touches, args);
    touches.unit_bytes("unit_bytes", args.unit_bytes);
    touches.streams("weights", args.weights, Extent(args.rows) * 2 * args.columns);
    touches.writes("h", args.h, args.rows);
  }
  using Shared = RowInput;

  /// Streams contiguous pairs, row by row, so that no unit spans two matrix rows.
  static TOKENYARD_DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    const Share pairs = share_of(args.rows, warp, warps);
    return {.from = reinterpret_cast<const std::byte*>(args.weights) +
                    size_t{pairs.begin} * 4 * args.columns,
            .row_stride = size_t{2} * args.columns,
            .rows = 2 * (pairs.end - pairs.begin),
            .row_bytes = 2 * args.columns,
            .piece_bytes = args.unit_bytes};
  }
  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    load_input(context, shared, args.x, args.norm, args.columns, args.epsilon);
    const Share pairs = share_of(args.rows, context.warp(), context.warps());
    for (uint32_t row = pairs.begin; row < pairs.end; ++row) {
      const float gate = streamed_dot(context, args.columns, args.unit_bytes, shared.x);
      const float up = streamed_dot(context, args.columns, args.unit_bytes, shared.x);
      if (warp::lane() == 0) args.h[row] = gate / (1 + exponential(-gate)) * up;
    }
  }
};

}  // namespace tokenyard::megakernel
