/// The messages of an operation: one description for all operations, so that each protocol is
/// written once.
///
/// Ranks are members here. Parts belong to slots, empty ones included.
///
/// Rank s has one message for rank d. It begins at part d of the input of s, if inputs have parts,
/// else at its start; it belongs at part s of the result of d, if results have parts, else at its
/// start, where a reduction folds the messages of all sources in the order of ranks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/empty_slots.hpp"
#include "device/macros.hpp"

namespace tokenyard::device_collectives {

struct Movement {
  bool reduces = false;
  bool only_from_root = false, only_to_root = false;
  bool input_has_parts = false, result_has_parts = false;
  uint32_t root = 0;
  uint64_t part = 0;   ///< bytes from one part to the next
  uint64_t whole = 0;  ///< bytes of the array that has parts, or of a message; the last parts of
                       ///< `rings` may be short or empty
  uint64_t begin = 0, end = 0;  ///< bytes of each message that this launch moves: a range
  EmptySlots empty = {};        ///< slots that have parts, but no rank

  TOKENYARD_HOST_DEVICE bool sends(uint32_t source, uint32_t destination) const {
    return (!only_from_root || source == root) && (!only_to_root || destination == root);
  }
  TOKENYARD_HOST_DEVICE bool has_input(uint32_t rank) const { return sends(rank, root); }
  TOKENYARD_HOST_DEVICE bool has_result(uint32_t rank) const { return sends(root, rank); }
  /// Returns the offset in the input of the bytes that this launch moves to a rank.
  TOKENYARD_HOST_DEVICE uint64_t input_at(uint32_t destination) const {
    return begin + (input_has_parts ? empty.slot_of(destination) * part : 0);
  }
  /// Returns the offset in the result of the bytes that this launch moves from a rank.
  TOKENYARD_HOST_DEVICE uint64_t result_at(uint32_t source) const {
    return begin + (result_has_parts ? empty.slot_of(source) * part : 0);
  }
  /// Returns the bytes that this launch moves, of the longest message.
  TOKENYARD_HOST_DEVICE uint64_t bytes() const { return end - begin; }
  /// Returns the bytes that this launch moves between two ranks.
  TOKENYARD_HOST_DEVICE uint64_t bytes_between(uint32_t source, uint32_t destination) const {
    const uint64_t first = (input_has_parts    ? empty.slot_of(destination)
                            : result_has_parts ? empty.slot_of(source)
                                               : 0) *
                               part +
                           begin;
    return first >= whole ? 0 : std::min(bytes(), whole - first);
  }
};

}  // namespace tokenyard::device_collectives
