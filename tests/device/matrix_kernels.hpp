/// Kernels that multiply small matrices, one product per warp, and transpose them.
#pragma once

#include "device/device.hpp"

namespace tokenyard::testing {

struct ProductsParams {
  const BFloat16* a;  ///< [warps][16][16]
  const BFloat16* b;  ///< [warps][16][8]
  float* c;           ///< [warps][16][8] sums, to which products are added
};

TOKENYARD_DEVICE uint32_t pair_of(const BFloat16* matrix, uint32_t first, uint32_t stride) {
  return matrix[first].bits | uint32_t{matrix[first + stride].bits} << 16;
}

TOKENYARD_DEVICE void products_body(const ProductsParams& params) {
  const BFloat16* const a = params.a + warp::index() * 256;
  const BFloat16* const b = params.b + warp::index() * 128;
  float* const c = params.c + warp::index() * 128;
  const uint32_t g = warp::lane() / 4, t = warp::lane() % 4;
  const uint32_t left[4] = {pair_of(a, g * 16 + 2 * t, 1), pair_of(a, (g + 8) * 16 + 2 * t, 1),
                            pair_of(a, g * 16 + 2 * t + 8, 1),
                            pair_of(a, (g + 8) * 16 + 2 * t + 8, 1)};
  const uint32_t right[2] = {pair_of(b, 2 * t * 8 + g, 8), pair_of(b, (2 * t + 8) * 8 + g, 8)};
  const uint32_t places[4] = {g * 8 + 2 * t, g * 8 + 2 * t + 1, (g + 8) * 8 + 2 * t,
                              (g + 8) * 8 + 2 * t + 1};
  float sums[4];
  for (uint32_t i = 0; i < 4; ++i) sums[i] = c[places[i]];
  warp::multiply_add(sums, left, right);
  for (uint32_t i = 0; i < 4; ++i) c[places[i]] = sums[i];
}

TOKENYARD_DEFINE_KERNEL(products_kernel, products_body, ProductsParams, NoShared, 64)

struct TransposedShared {
  Bytes16 rows[kWarpLanes];  ///< rows of four matrices
};
struct TransposedParams {
  const Bytes16* rows;  ///< [32] rows of eight elements
  uint32_t* columns;    ///< [32][4] each lane's result
};

TOKENYARD_DEVICE void transposed_body(const TransposedParams& params) {
  auto& shared = block::shared<TransposedShared>();
  shared.rows[warp::lane()] = params.rows[warp::lane()];
  warp::sync();
  uint32_t columns[4];
  warp::load_transposed(columns, &shared.rows[warp::lane()]);
  for (uint32_t i = 0; i < 4; ++i) params.columns[4 * warp::lane() + i] = columns[i];
}

TOKENYARD_DEFINE_KERNEL(transposed_kernel, transposed_body, TransposedParams, TransposedShared, 32)

}  // namespace tokenyard::testing
