/// For ranks on several hosts, some hosts with several ranks: first within each host, then between
/// one rank per host, its leader. So an array crosses between hosts as seldom as possible.
#pragma once

#include "collectives/algorithms/rooted.hpp"
#include "collectives/interfaces/array.hpp"

namespace tokenyard::collectives {

/// The result replaces the summands, which are in work memory.
Task all_reduce_by_host(Attempt& attempt, Summands summands);
Task reduce_by_host(Attempt& attempt, Summands summands, uint32_t root);
Task broadcast_by_host(Attempt& attempt, Array array, uint32_t root);

}  // namespace tokenyard::collectives
