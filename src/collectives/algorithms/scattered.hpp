/// Operations in which each rank has a part of its own. Lists have a part for each rank of the
/// group; those of ranks outside the team are not touched. Every one of them sends what it must and
/// no byte twice: (N-1)/N of the whole, a rank.
#pragma once

#include <span>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/interfaces/array.hpp"
#include "collectives/interfaces/attempt.hpp"

namespace tokenyard::collectives {

/// Each rank gets everybody's part for it and adds them up, short floats with one rounding. `out`
/// lies apart from all of `in`.
Task reduce_scatter_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                           Array out, ReduceOp op);
/// Sums go around, each rank adding its part. Not for short floats, which it would round N-1 times.
Task reduce_scatter_ring(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                         Array out, ReduceOp op);

/// `in` lies apart from all of `out`, or in its place.
Task all_gather_direct(Attempt& attempt, const Team& team, ConstArray in,
                       std::span<const Array> out);
/// This rank's own part is in its place already.
Task all_gather_ring(Attempt& attempt, const Team& team, std::span<const Array> out);

Task gather_direct(Attempt& attempt, const Team& team, ConstArray in, std::span<const Array> out,
                   uint32_t root);
Task scatter_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in, Array out,
                    uint32_t root);
Task all_to_all_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                       std::span<const Array> out);

}  // namespace tokenyard::collectives
