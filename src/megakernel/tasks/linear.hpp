/// Rows of a matrix times a vector, weights streamed ahead.
#pragma once

#include "megakernel/tasks/fields.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

/// y[r] = residual[r] + weights[r] . rms_norm(x), for rows [0, rows) of the pointers it is given.
struct Linear {
  static constexpr const char* kName = "linear";
  struct Args {
    const BFloat16* weights;  ///< [rows][columns]
    const float* x;           ///< [columns]
    const BFloat16* norm;     ///< [columns], or null: x as it is
    const float* residual;    ///< [rows], or null: 0
    float* y;                 ///< [rows]
    uint32_t rows, columns;   ///< columns: a multiple of 8, at most kColumnsMax
    uint32_t unit_bytes;      ///< the megakernel's
    float epsilon;
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, weights), TOKENYARD_FIELD(pointer, x),
      TOKENYARD_FIELD(pointer, norm),    TOKENYARD_FIELD(pointer, residual),
      TOKENYARD_FIELD(pointer, y),       TOKENYARD_FIELD(u32, rows),
      TOKENYARD_FIELD(u32, columns),     TOKENYARD_FIELD(u32, unit_bytes),
      TOKENYARD_FIELD(f32, epsilon)};
  using Shared = RowInput;

  static DEVICE RowPieces pieces(const Args& args) {
    return {.rows = args.rows, .columns = args.columns, .unit_bytes = args.unit_bytes};
  }
  static DEVICE uint32_t units(const Args& args, uint32_t warp, uint32_t warps) {
    return pieces(args).units(warp, warps);
  }
  static DEVICE Unit unit(const Args& args, uint32_t warp, uint32_t warps, uint32_t index) {
    return pieces(args).unit(args.weights, warp, warps, index);
  }
  static DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    load_input(context, shared, args.x, args.norm, args.columns, args.epsilon);
    for (uint32_t row = context.warp(); row < args.rows; row += context.warps()) {
      const float product = streamed_dot(context, pieces(args), shared.x);
      if (warp::lane() == 0)
        args.y[row] = product + (args.residual == nullptr ? 0.0f : args.residual[row]);
    }
  }
};

/// h[i] = silu(gate_i . x) * (up_i . x), x normalised. Weights: gate and up rows in turn.
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
  using Shared = RowInput;

  /// A pair of rows is one long row to whoever streams it.
  static DEVICE RowPieces pair(const Args& args) {
    return {.rows = args.rows, .columns = 2 * args.columns, .unit_bytes = args.unit_bytes};
  }
  static DEVICE RowPieces half(const Args& args) {
    return {.rows = 2 * args.rows, .columns = args.columns, .unit_bytes = args.unit_bytes};
  }
  static DEVICE uint32_t units(const Args& args, uint32_t warp, uint32_t warps) {
    return pair(args).rows_of(warp, warps) * 2 * half(args).pieces();
  }
  static DEVICE Unit unit(const Args& args, uint32_t warp, uint32_t warps, uint32_t index) {
    const uint32_t pieces = half(args).pieces();
    const uint32_t row = index / (2 * pieces) * warps + warp;
    return half(args).unit(args.weights + size_t{row} * 2 * args.columns, 0, 1,
                           index % (2 * pieces));
  }
  static DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    load_input(context, shared, args.x, args.norm, args.columns, args.epsilon);
    for (uint32_t row = context.warp(); row < args.rows; row += context.warps()) {
      const float gate = streamed_dot(context, half(args), shared.x);
      const float up = streamed_dot(context, half(args), shared.x);
      if (warp::lane() == 0) args.h[row] = gate / (1 + exponential(-gate)) * up;
    }
  }
};

}  // namespace tokenyard::megakernel
