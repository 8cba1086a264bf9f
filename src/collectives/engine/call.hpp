/// What a caller wants done: an operation's kind and arguments, and how to do it in one attempt.
#pragma once

#include <vector>

#include "collectives/algorithms/choice.hpp"
#include "collectives/engine/attempt.hpp"
#include "collectives/engine/signature.hpp"

namespace tokenyard::collectives {

struct Call {
  Signature signature;
  std::vector<ConstArray> in = {};
  std::vector<Array> out = {};
  /// What choices go by; the same on all ranks.
  size_t bytes = 0;
};

/// All data of the operation, without the commit round. The call outlives it.
Task perform(Attempt& attempt, const Call& call, const Choice& choice);

/// A barrier of empty frames in log2 N steps. Whoever leaves it knows that all have entered it, and
/// so that all data are where they belong.
Task commit_round(Attempt& attempt);

}  // namespace tokenyard::collectives
