/// Sums that save what they replace, line by line: while one line's loads are on their way from
/// another core, stores of the ones before it drain to memory. In turns, block by block, a large
/// sum of two ranks takes a tenth longer.
#pragma once

#include <cstddef>

#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

inline constexpr size_t saving_line_bytes = 64;

/// saved = mine; mine = first + second, where `mine` is one of the two; of so many whole lines.
/// `saved` begins a line and goes past the caches (streaming_copy.hpp). Fetches what lies `ahead`
/// bytes after `mine`, for it is wanted next.
using SavingSum = void (*)(std::byte* saved, std::byte* mine, const std::byte* first,
                           const std::byte* second, size_t bytes, size_t ahead);

/// Null where there is none: this machine has no such vectors, or the type other arithmetic.
SavingSum saving_sum_of(DataType type, ReduceOp op);

}  // namespace tokenyard::collectives
