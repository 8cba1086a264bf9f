/// A caller's request (an operation's kind and arguments), and how one attempt carries it out.
#pragma once

#include <vector>

#include "collectives/algorithms/choice.hpp"
#include "collectives/interfaces/array.hpp"
#include "collectives/interfaces/attempt.hpp"
#include "collectives/interfaces/signature.hpp"

namespace tokenyard::collectives {

struct Call {
  Signature signature;
  std::vector<ConstArray> in = {};
  std::vector<Array> out = {};
  /// Size by which algorithms are chosen; the same on all ranks.
  size_t bytes = 0;

  /// Returns whether this rank's lists have one part per rank of the group; `parts` returns how
  /// many.
  bool has_parts(uint32_t self) const;
  size_t parts() const { return in.size() > out.size() ? in.size() : out.size(); }
  /// Returns the size of this rank's results.
  size_t bytes_written() const;
  /// Zeroes the parts of `ranks` in this rank's results.
  void clear_places(uint32_t self, const std::vector<uint32_t>& ranks) const;
  /// Returns whether each of this rank's lists has `ranks` parts.
  bool has_parts_for(size_t ranks) const;
  /// Returns whether this rank's part of the results is as long as the data that goes there.
  bool own_part_fits(uint32_t self) const;
  /// Returns the call with one part per rank of the group, made from a call with one part per rank
  /// of `ranks`; the other ranks' parts are empty.
  Call spread(const std::vector<uint32_t>& ranks, size_t size) const;
};

/// Moves all data of the operation, without the commit round. `call` must outlive the task.
Task perform(Attempt& attempt, const Call& call, const Choice& choice);

/// The commit round: a barrier of empty frames in ceil(log2 N) steps. Every rank enters it with all
/// its data complete. Invariant: a rank that leaves the round knows that every rank has entered it,
/// and so that every rank's data are complete.
Task commit_round(Attempt& attempt);

}  // namespace tokenyard::collectives
