/// Row formats: their names, and the size of a row.
#pragma once

#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::throughput {

/// Alignment of rows, which bulk copies and vector accesses require.
inline constexpr uint64_t kRowAlignment = 16;

/// Returns the bytes of one row. Throws InvalidArgument for a format that does not fit `hidden`
/// elements.
uint32_t row_bytes(const RowFormat& format, uint32_t hidden);

}  // namespace tokenyard::throughput
