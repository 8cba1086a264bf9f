/// Row formats: their names, and the size of a row.
#pragma once

#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::throughput {

/// Rows begin and end at multiples of it: bulk copies and vector accesses demand so.
inline constexpr uint64_t kRowAlignment = 16;

/// Returns the bytes of one row; throws InvalidArgument for a format that `hidden` elements cannot
/// have.
uint32_t row_bytes(const RowFormat& format, uint32_t hidden);

}  // namespace tokenyard::throughput
