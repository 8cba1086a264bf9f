/// The kernel that sums a row's results; reduce_rows.hpp tells what for.
#pragma once

#include "device/device.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/expert_major/reduce_rows.hpp"
#include "expert_parallel/throughput/piece_sums_kernel.hpp"

namespace tokenyard::expert_major {

/// By one warp.
template <class Piece>
DEVICE void reduce_row(const ReduceParams& params, uint32_t row) {
  const size_t picks = size_t{row} * params.topk;
  const bool has_pick = warp::lane() < params.topk;
  const int32_t slot = has_pick ? params.slots[picks + warp::lane()] : -1;
  const bool weighted = params.weights != nullptr;
  const float weight = weighted && has_pick ? params.weights[picks + warp::lane()] : 1;
  const uint32_t there = warp::ballot(slot >= 0);
  const uint32_t pieces = params.row_bytes / sizeof(Bytes16);
  const auto* const y = reinterpret_cast<const Bytes16*>(params.y);
  auto* const to = reinterpret_cast<Bytes16*>(params.to) + size_t{row} * pieces;
  constexpr uint32_t kAhead = 4, kPicksAtOnce = 4;
  for (uint32_t first = 0; first < pieces; first += kAhead * kWarpLanes) {
    throughput::PieceSums<Piece> sums[kAhead];
    const auto piece = [&](uint32_t i) { return first + i * kWarpLanes + warp::lane(); };
    for (auto& sum : sums) sum.clear();
    for (uint32_t left = there; left != 0;) {
      // Several rows are on their way at a time: one would leave most of the memory's rate unused.
      Bytes16 values[kPicksAtOnce][kAhead];
      uint32_t picks[kPicksAtOnce];
      UNROLL
      for (uint32_t row = 0; row < kPicksAtOnce; ++row) {
        picks[row] = first_bit(left);
        left &= left - 1;
        if (picks[row] >= kWarpLanes) continue;
        const auto place = static_cast<size_t>(warp::shuffle(slot, picks[row]));
        UNROLL
        for (uint32_t i = 0; i < kAhead; ++i)
          if (piece(i) < pieces) values[row][i] = load_vector(y + place * pieces + piece(i));
      }
      UNROLL
      for (uint32_t row = 0; row < kPicksAtOnce; ++row) {
        if (picks[row] >= kWarpLanes) continue;
        const float factor = warp::shuffle(weight, picks[row]);
        UNROLL
        for (uint32_t i = 0; i < kAhead; ++i) {
          if (piece(i) >= pieces) continue;
          if (weighted)
            sums[i].add_scaled(values[row][i], factor);
          else
            sums[i].add(values[row][i]);
        }
      }
    }
    for (uint32_t i = 0; i < kAhead; ++i)
      if (piece(i) < pieces) store_vector(to + piece(i), sums[i].rounded());
  }
}

template <class Piece>
DEVICE void reduce_rows_of(const ReduceParams& params) {
  const uint32_t warps = block::threads() / kWarpLanes;
  for (uint32_t row = block::index() * warps + warp::index(); row < params.rows;
       row += grid::blocks() * warps)
    reduce_row<Piece>(params, row);
}

DEVICE void reduce_rows(const ReduceParams& params) {
  const Deadline deadline = params.patience.start();
  // After a call that failed there are no places that could be trusted. (Warps need not agree.)
  if (warp::any(deadline.failed())) return;
  switch (params.type) {
    case ElementType::fp16:
      return reduce_rows_of<throughput::Fp16Piece>(params);
    case ElementType::fp32:
      return reduce_rows_of<throughput::Fp32Piece>(params);
    default:
      return reduce_rows_of<throughput::Bf16Piece>(params);
  }
}

DEFINE_KERNEL(reduce_rows_kernel, reduce_rows, ReduceParams, NoShared, kReduceThreadsMax)

}  // namespace tokenyard::expert_major
