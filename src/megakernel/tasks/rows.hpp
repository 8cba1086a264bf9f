/// Products of BF16 matrices with one vector, the main work of decoding. A warp processes whole
/// rows, in pieces of one unit; a lane processes eight elements at a time.
#pragma once

#include "device/functions.hpp"
#include "device/unroll.hpp"
#include "megakernel/kernels/context.hpp"
#include "tokenyard/megakernel/touches.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kColumnsMax = 8192;

/// The vector, in shared memory, for all threads of a task.
struct RowInput {
  float x[kColumnsMax];
  float warp_sums[kComputeWarpsMax];
};

/// A contiguous part of an even division.
struct Share {
  uint32_t begin, end;
};
TOKENYARD_DEVICE Share share_of(uint32_t count, uint32_t index, uint32_t parts) {
  return {static_cast<uint32_t>(uint64_t{count} * index / parts),
          static_cast<uint32_t>(uint64_t{count} * (index + 1) / parts)};
}

/// Returns rows warp, warp + warps, ... of a matrix, so that a block's concurrent loads are
/// contiguous.
TOKENYARD_DEVICE StreamedRows every_nth_row(const BFloat16* weights, uint32_t rows,
                                            uint32_t columns, uint32_t piece_bytes, uint32_t warp,
                                            uint32_t warps) {
  return {.from = reinterpret_cast<const std::byte*>(weights) + size_t{warp} * 2 * columns,
          .row_stride = size_t{warps} * 2 * columns,
          .rows = rows > warp ? (rows - warp + warps - 1) / warps : 0,
          .row_bytes = 2 * columns,
          .piece_bytes = piece_bytes};
}

TOKENYARD_DEVICE float low_half(uint32_t pair) {
  return to_float(BFloat16{static_cast<uint16_t>(pair)});
}
TOKENYARD_DEVICE float high_half(uint32_t pair) {
  return to_float(BFloat16{static_cast<uint16_t>(pair >> 16)});
}

TOKENYARD_DEVICE void unpack(const Bytes16& packed, float (&values)[8]) {
  TOKENYARD_UNROLL
  for (uint32_t pair = 0; pair < 4; ++pair) {
    values[2 * pair] = low_half(packed.word[pair]);
    values[2 * pair + 1] = high_half(packed.word[pair]);
  }
}

/// Adds the products of eight BF16 weights and eight elements to four sums: one fused multiply-add
/// per product.
TOKENYARD_DEVICE void add_products(const Bytes16& weights, const float* x, float (&sums)[4]) {
  TOKENYARD_UNROLL
  for (uint32_t pair = 0; pair < 4; ++pair) {
    sums[pair] += low_half(weights.word[pair]) * x[2 * pair];
    sums[pair] += high_half(weights.word[pair]) * x[2 * pair + 1];
  }
}
TOKENYARD_DEVICE float total(const float (&sums)[4]) {
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Returns the sum over the warp, equal in every lane.
TOKENYARD_DEVICE float warp_sum(float value) {
  for (uint32_t mask = kWarpLanes / 2; mask > 0; mask /= 2) value += warp::shuffle_xor(value, mask);
  return value;
}

/// Returns this lane's share of a product of `count` elements (a multiple of 8).
TOKENYARD_DEVICE float lane_dot(const BFloat16* weights, const float* x, uint32_t count) {
  const auto* const vectors = reinterpret_cast<const Bytes16*>(weights);
  float sums[4] = {};
  for (uint32_t i = warp::lane(); i < count / 8; i += kWarpLanes)
    add_products(vectors[i], x + i * 8, sums);
  return total(sums);
}

/// Returns the product of the warp's next streamed row. Called by a warp.
TOKENYARD_DEVICE float streamed_dot(Context& context, uint32_t columns, uint32_t unit_bytes,
                                    const float* x) {
  float sum = 0;
  const uint32_t step = unit_bytes / 2;
  for (uint32_t at = 0; at < columns; at += step) {
    const uint32_t count = columns - at < step ? columns - at : step;
    const std::byte* const unit = context.next_unit();
    if (unit != nullptr) sum += lane_dot(reinterpret_cast<const BFloat16*>(unit), x + at, count);
    context.release_unit();
  }
  return warp_sum(sum);
}

/// Loads x into shared memory, by all threads, normalised (RMSNorm) if `norm` weights are given.
TOKENYARD_DEVICE void load_input(Context& context, RowInput& shared, const float* x,
                                 const BFloat16* norm, uint32_t columns, float epsilon) {
  float squares = 0;
  for (uint32_t i = context.thread(); i < columns; i += context.threads()) {
    const float value = x[i];
    squares += value * value;
    shared.x[i] = norm == nullptr ? value : value * to_float(norm[i]);
  }
  if (norm == nullptr) return context.sync();
  squares = warp_sum(squares);
  if (warp::lane() == 0) shared.warp_sums[context.warp()] = squares;
  context.sync();
  float sum = 0;
  for (uint32_t warp = 0; warp < context.warps(); ++warp) sum += shared.warp_sums[warp];
  const float scale = reciprocal_square_root(sum / static_cast<float>(columns) + epsilon);
  for (uint32_t i = context.thread(); i < columns; i += context.threads()) shared.x[i] *= scale;
  context.sync();
}

/// States what load_input touches, and checks the requirements of rows of `columns` elements, for
/// tasks whose Args have x, norm, columns and epsilon.
template <class Args>
void touch_row_input(Touches& touches, const Args& args) {
  touches.require(args.columns > 0 && args.columns % 8 == 0 && args.columns <= kColumnsMax,
                  "columns", "a multiple of 8 from 8 to 8192", args.columns);
  touches.require(args.epsilon >= 0 && args.epsilon < 1, "epsilon", "a number from 0 to 1",
                  args.epsilon);
  touches.reads("x", args.x, args.columns);
  if (args.norm != nullptr) touches.reads("norm", args.norm, args.columns);
}

}  // namespace tokenyard::megakernel
