/// Among ranks of several hosts, of which some have several: within each host first, then between
/// one rank of each, its leader, so that an array crosses from host to host as seldom as can be.
#pragma once

#include "collectives/algorithms/rooted.hpp"
#include "collectives/interfaces/array.hpp"

namespace tokenyard::collectives {

/// The result replaces the summands, which lie in working memory.
Task all_reduce_by_host(Attempt& attempt, Summands summands);
Task reduce_by_host(Attempt& attempt, Summands summands, uint32_t root);
Task broadcast_by_host(Attempt& attempt, Array array, uint32_t root);

}  // namespace tokenyard::collectives
