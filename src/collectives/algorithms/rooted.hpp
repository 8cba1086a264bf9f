/// One rank to all, and all to one, along a tree: a binomial tree of log2 N levels for small
/// arrays; a chain through which pieces are pipelined for large ones, where each rank sends the
/// array once.
#pragma once

#include <vector>

#include "collectives/algorithms/all_reduce.hpp"
#include "collectives/interfaces/array.hpp"

namespace tokenyard::collectives {

/// A rank's neighbours in a tree over a team.
struct Tree {
  static constexpr uint32_t nobody = ~0u;
  uint32_t parent = nobody;
  std::vector<uint32_t> children;  ///< those with the largest subtrees first
  bool forwards = false;           ///< some rank passes on what it receives
};
Tree binomial_tree(const Team& team, uint32_t root);
Tree chain(const Team& team, uint32_t root);

/// `undo` may have no reservation: on ranks other than the root, the array is no input.
Task broadcast_along(Attempt& attempt, Tree tree, Array array);

/// Sums towards the root; `summands.data` is work memory on all ranks.
Task reduce_along(Attempt& attempt, Tree tree, Summands summands);

}  // namespace tokenyard::collectives
