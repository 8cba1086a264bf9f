/// Operations in which each rank has a part of its own. Lists have one part per rank of the group;
/// parts of ranks outside the team are not touched. Each rank sends only the bytes it must, and
/// none twice: (N-1)/N of the whole.
#pragma once

#include <span>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/interfaces/array.hpp"
#include "collectives/interfaces/attempt.hpp"

namespace tokenyard::collectives {

/// Each rank receives all other ranks' parts for it and adds them up; short floats are rounded
/// once. `out` must not overlap `in`.
Task reduce_scatter_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                           Array out, ReduceOp op);
/// Sums travel around a ring, and each rank adds its part. Would round short floats N-1 times, so
/// not for those.
Task reduce_scatter_ring(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                         Array out, ReduceOp op);

/// `in` must not overlap `out`, or must be this rank's part of it.
Task all_gather_direct(Attempt& attempt, const Team& team, ConstArray in,
                       std::span<const Array> out);
/// This rank's own part must be in place already.
Task all_gather_ring(Attempt& attempt, const Team& team, std::span<const Array> out);

Task gather_direct(Attempt& attempt, const Team& team, ConstArray in, std::span<const Array> out,
                   uint32_t root);
Task scatter_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in, Array out,
                    uint32_t root);
Task all_to_all_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                       std::span<const Array> out);

}  // namespace tokenyard::collectives
