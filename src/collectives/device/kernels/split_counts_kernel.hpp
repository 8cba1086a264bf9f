/// The sizes that ranks publish of splits which only devices know, and their checks. See
/// splits.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/device_call_kernel.hpp"
#include "collectives/device/kernels/splits.hpp"

namespace tokenyard::device_collectives {

/// A number of bytes that no array holds, for a split that is none.
inline constexpr uint64_t kNoBytes = (uint64_t{1} << CountWord::kBits) - 1;

/// The facts that a warp which compares splits needs.
struct SplitsWork {
  const SplitArrays& arrays;
  const CallParams& call;
  const BlockDeadline& deadline;
  const uint32_t parity;

  /// Returns what this rank's splits say of a slot.
  TOKENYARD_DEVICE uint64_t bytes_for_slot(uint32_t slot) const {
    const int64_t elements = arrays.splits[slot];
    const uint64_t most = arrays.input_bytes / arrays.element_bytes;
    return elements < 0 || static_cast<uint64_t>(elements) > most
               ? kNoBytes
               : static_cast<uint64_t>(elements) * arrays.element_bytes;
  }
  /// Returns the bytes of the input for empty slots before one, which nobody gets.
  TOKENYARD_DEVICE uint64_t skipped_before(uint32_t slot) const {
    uint64_t bytes = 0;
    if (call.empty.bits == 0) return bytes;
    for (uint32_t empty = 0; empty < slot; ++empty)
      if (call.empty.bits >> empty & 1) bytes += bytes_for_slot(empty);
    return bytes;
  }
  /// Returns what this rank tells of a member: how much it sends, and beside that for itself how
  /// much its result holds, for others how much its input has for members.
  TOKENYARD_DEVICE CountWord own_word(uint32_t member) const {
    const uint64_t skipped = skipped_before(arrays.slots);
    const bool fits = skipped <= arrays.input_bytes;
    if (member == call.rank)
      return CountWord::of(fits ? bytes_for_slot(call.empty.slot_of(member)) : kNoBytes,
                           arrays.result_bytes);
    return CountWord::of(bytes_for_slot(call.empty.slot_of(member)),
                         fits ? arrays.input_bytes - skipped : 0);
  }
  /// Returns what a rank has published about a peer, or about itself.
  TOKENYARD_DEVICE CountWord published(uint32_t rank, uint32_t peer) const {
    return {load<Order::relaxed, Scope::sys>(call.windows.counts(call.rank, parity, rank, peer))};
  }
  TOKENYARD_DEVICE uint64_t sent_by(uint32_t rank) const {
    uint64_t bytes = 0;
    for (uint32_t peer = 0; peer < call.ranks; ++peer) bytes += published(rank, peer).sent();
    return bytes;
  }
  TOKENYARD_DEVICE uint64_t sent_to(uint32_t rank) const {
    uint64_t bytes = 0;
    for (uint32_t peer = 0; peer < call.ranks; ++peer) bytes += published(peer, rank).sent();
    return bytes;
  }
  /// Returns where the input has the part for a member, and the result the part from one.
  TOKENYARD_DEVICE uint64_t sent_at(uint32_t member) const {
    uint64_t bytes = skipped_before(call.empty.slot_of(member));
    for (uint32_t before = 0; before < member; ++before)
      bytes += published(call.rank, before).sent();
    return bytes;
  }
  TOKENYARD_DEVICE uint64_t received_at(uint32_t member) const {
    uint64_t bytes = 0;
    for (uint32_t before = 0; before < member; ++before)
      bytes += published(before, call.rank).sent();
    return bytes;
  }
};

/// Refuses the call if a lane's rank needs more bytes than it has. Called by a warp; returns
/// whether none does.
TOKENYARD_DEVICE bool holds_all(const SplitsWork& work, WaitPhase phase, uint32_t rank,
                                uint64_t holds, uint64_t needed) {
  const uint32_t others = warp::ballot(rank < work.call.ranks && needed > holds);
  if (others == 0) return true;
  if (warp::lane() == first_bit(others))
    work.deadline.fail(
        Failure::refused,
        {.phase = static_cast<uint32_t>(phase), .rank = rank, .expected = holds, .seen = needed});
  return false;
}

/// Returns whether all splits fit. Called by a warp, once it has all ranks' call words.
TOKENYARD_DEVICE bool splits_fit(const SplitsWork& work) {
  const CallParams& call = work.call;
  for (uint32_t first = 0; first < call.ranks; first += kWarpLanes) {
    const uint32_t rank = first + warp::lane();
    const bool is_one = rank < call.ranks;
    const uint64_t input =
        !is_one ? 0
        : call.ranks == 1
            ? work.arrays.input_bytes -
                  std::min(work.arrays.input_bytes, work.skipped_before(work.arrays.slots))
            : work.published(rank, (rank + 1) % call.ranks).expected();
    if (!holds_all(work, WaitPhase::splits, rank, input, is_one ? work.sent_by(rank) : 0))
      return false;
    if (!holds_all(work, WaitPhase::capacity, rank,
                   is_one ? work.published(rank, rank).expected() : 0,
                   is_one ? work.sent_to(rank) : 0))
      return false;
  }
  return true;
}

/// Stores how many elements have come from each slot, for the caller. Called by a warp.
TOKENYARD_DEVICE void store_received(const SplitsWork& work) {
  for (uint32_t slot = warp::lane(); slot < work.arrays.slots; slot += kWarpLanes)
    if (slot < EmptySlots::kSlotsMax && (work.call.empty.bits >> slot & 1) != 0)
      work.arrays.received[slot] = 0;
  for (uint32_t peer = warp::lane(); peer < work.call.ranks; peer += kWarpLanes)
    work.arrays.received[work.call.empty.slot_of(peer)] = static_cast<int64_t>(
        work.published(peer, work.call.rank).sent() / work.arrays.element_bytes);
}

}  // namespace tokenyard::device_collectives
