/// Small BF16 matrix products by a whole warp, on a GPU's tensor cores.
#pragma once

#include <cstdint>

#include "device/memory.hpp"
#include "device/warp.hpp"

namespace tokenyard::warp {

/// Computes c += a * b; a: [16][16] and b: [16][8] BF16, c: [16][8] float32. Lane 4 * g + t holds
///
///     a   {row g, columns 2t, 2t+1}, {row g+8, columns 2t, 2t+1},
///         {row g, columns 2t+8, 2t+9}, {row g+8, columns 2t+8, 2t+9}; lower column in the low half
///     b   {column g, rows 2t, 2t+1}, {column g, rows 2t+8, 2t+9}; lower row in the low half
///     c   row g, columns 2t, 2t+1; row g+8, columns 2t, 2t+1
///
/// All lanes call it. Products are exact, but order and precision of the sums are the device's own,
/// so sums on a GPU and on a host differ. An element of c depends only on its row of a and its
/// column of b, not on their position.
TOKENYARD_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

/// Loads and transposes four matrices of 8 x 8 two-byte elements from shared memory. Lane l passes
/// the address of row l % 8 of matrix l / 8: 16 bytes, 16-byte aligned. Lane 4 * g + t receives,
/// per matrix, column g of rows 2t and 2t+1, the lower row in the low half: the layout of b that
/// multiply_add needs when a column's elements are not contiguous. All lanes call it.
TOKENYARD_DEVICE void load_transposed(uint32_t (&columns)[4], const Bytes16* row);

}  // namespace tokenyard::warp

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/matrix.hpp"
#else
#include "device/host/matrix.hpp"
#endif
