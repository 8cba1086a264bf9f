/// Small products of BF16 matrices by a whole warp: what a GPU's tensor cores do.
#pragma once

#include <cstdint>

#include "device/memory.hpp"
#include "device/warp.hpp"

namespace tokenyard::warp {

/// c += a * b; a: [16][16], b: [16][8], both BF16, c: [16][8] float32. Of lane 4 * g + t
///
///     a   rows g, g + 8, g, g + 8; of the first two columns 2 * t and 2 * t + 1, of the others
///         2 * t + 8 and 2 * t + 9, the lower one in the lower half
///     b   of column g, rows 2 * t and 2 * t + 1, and 2 * t + 8 and 2 * t + 9
///     c   of row g columns 2 * t and 2 * t + 1, and of row g + 8
///
/// By all lanes. Products are exact; in which order they are added, and with how many bits, is the
/// device's own, so a GPU's sums are not a host's. An element of c depends on its row of a and its
/// column of b alone, wherever they stand.
DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

/// Four matrices of 8 by 8 elements of two bytes, in shared memory, transposed. Lane l names row
/// l % 8 of matrix l / 8: sixteen bytes, aligned to as many. Lane 4 * g + t gets of each matrix
/// what stands in column g of rows 2 * t and 2 * t + 1, the lower one in the lower half: as
/// multiply_add wants columns of b whose elements lie apart. By all lanes.
DEVICE void load_transposed(uint32_t (&columns)[4], const Bytes16* row);

}  // namespace tokenyard::warp

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/matrix.hpp"
#else
#include "device/host/matrix.hpp"
#endif
