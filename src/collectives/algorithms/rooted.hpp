/// From one rank to all, and from all to one, each way along a tree: of log2 N levels for small
/// arrays, a chain with pieces following one another for large ones, where every rank sends the
/// array once.
#pragma once

#include <vector>

#include "collectives/algorithms/all_reduce.hpp"
#include "collectives/interfaces/array.hpp"

namespace tokenyard::collectives {

/// Who a rank is next to in a tree of a team.
struct Tree {
  static constexpr uint32_t nobody = ~0u;
  uint32_t parent = nobody;
  std::vector<uint32_t> children;  ///< those with the most below them first
  bool forwards = false;           ///< some rank hands on what it gets
};
Tree binomial_tree(const Team& team, uint32_t root);
Tree chain(const Team& team, uint32_t root);

/// `undo` may have nothing reserved: the others' arrays are no inputs.
Task broadcast_along(Attempt& attempt, Tree tree, Array array);

/// Sums up to the root; `summands.data` is working memory everywhere.
Task reduce_along(Attempt& attempt, Tree tree, Summands summands);

}  // namespace tokenyard::collectives
