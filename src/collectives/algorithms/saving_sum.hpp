/// Sums that save what they overwrite, line by line: while one line is being loaded from another
/// core's cache, stores of earlier lines drain to memory. Saving and adding in turns, block by
/// block, makes a large sum of two ranks a tenth slower.
#pragma once

#include <cstddef>

#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

inline constexpr size_t saving_line_bytes = 64;

/// saved = mine; mine = first + second, where `mine` is one of the two. `bytes` is a whole number
/// of lines. `saved` is aligned to a line and bypasses the caches (streaming_copy.hpp). Prefetches
/// `mine` `ahead` bytes further on, which is needed next.
using SavingSum = void (*)(std::byte* saved, std::byte* mine, const std::byte* first,
                           const std::byte* second, size_t bytes, size_t ahead);

/// Returns null if this machine has no such vectors, or the type needs other arithmetic.
SavingSum saving_sum_of(DataType type, ReduceOp op);

}  // namespace tokenyard::collectives
