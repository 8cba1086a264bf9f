/// What a caller wants done: an operation's kind and arguments, and how to do it in one attempt.
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
  /// What choices go by; the same on all ranks.
  size_t bytes = 0;

  /// On this rank: lists with a part for each rank of the group, and how many they have.
  bool has_parts(uint32_t self) const;
  size_t parts() const { return in.size() > out.size() ? in.size() : out.size(); }
  /// Of its results, on this rank.
  size_t bytes_written() const;
  /// Fills the places of `ranks` in its results with zeros, on this rank.
  void clear_places(uint32_t self, const std::vector<uint32_t>& ranks) const;
  /// Whether each of its lists, on this rank, has so many parts.
  bool has_parts_for(size_t ranks) const;
  /// Whether this rank's part of its results is as long as what goes there.
  bool own_part_fits(uint32_t self) const;
  /// Returns the same call with a part for each of the group's `size` ranks, made from one with a
  /// part for each of `ranks`; the other ranks' parts are empty.
  Call spread(const std::vector<uint32_t>& ranks, size_t size) const;
};

/// All data of the operation, without the commit round. The call outlives it.
Task perform(Attempt& attempt, const Call& call, const Choice& choice);

/// A barrier of empty frames in log2 N steps. Whoever leaves it knows that all have entered it, and
/// so that all data are where they belong.
Task commit_round(Attempt& attempt);

}  // namespace tokenyard::collectives
