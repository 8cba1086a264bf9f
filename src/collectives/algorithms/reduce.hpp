/// Arithmetic of reductions. Arrays may lie at any address.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

/// into[i] = first[i] op second[i]; `into` may be either of them. Where several ranks compute the
/// same sum, all put the lower ranks' part first: which NaN or zero survives depends on it.
using Combine = void (*)(void* into, const void* first, const void* second, size_t elements);

/// Throws InvalidArgument where the operation makes no sense for the type.
void check_reducible(DataType type, ReduceOp op);

/// `average` combines like `sum`; the sum is divided once, by `divide`.
Combine combine_of(DataType type, ReduceOp op);

/// What sums of this type are kept in until they are rounded, once: float32 for the short floats.
DataType accumulator_of(DataType type);
/// Like `combine_of`, but `into` and `first` are of accumulator_of(type), and `second` of `type`.
Combine accumulate_of(DataType type, ReduceOp op);
/// Between a type and its accumulator's; a copy where they are the same.
void widen(void* into, const void* from, DataType type, size_t elements);
void narrow(void* into, const void* from, DataType type, size_t elements);

/// Floats and complex numbers.
void divide(void* data, DataType type, size_t elements, uint32_t by);

}  // namespace tokenyard::collectives
