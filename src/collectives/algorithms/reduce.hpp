/// Arithmetic of reductions. Arrays may have any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

/// into[i] = first[i] op second[i]; `into` may be `first` or `second`. If several ranks compute the
/// same sum, all put the lower ranks' part first, since it decides which NaN or zero survives.
using Combine = void (*)(void* into, const void* first, const void* second, size_t elements);

/// Throws InvalidArgument if the type does not have this reduction.
void check_reducible(DataType type, ReduceOp op);

/// Returns the function that combines. For `average` that is the sum's; `divide` divides once, at
/// the end.
Combine combine_of(DataType type, ReduceOp op);

/// Returns the type in which sums are kept until they are rounded once: float32 for short floats.
DataType accumulator_of(DataType type);
/// As `combine_of`, but `into` and `first` have accumulator_of(type), and `second` has `type`.
Combine accumulate_of(DataType type, ReduceOp op);
/// Convert between a type and its accumulator; copy if they are the same.
void widen(void* into, const void* from, DataType type, size_t elements);
void narrow(void* into, const void* from, DataType type, size_t elements);

/// Divides in place; for floats and complex numbers.
void divide(void* data, DataType type, size_t elements, uint32_t by);

}  // namespace tokenyard::collectives
