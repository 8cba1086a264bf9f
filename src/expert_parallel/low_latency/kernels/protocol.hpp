/// The low-latency protocol: what ranks exchange in a call that has no time for a second round
/// trip.
///
///     source                                           destination
///     drained{dispatch, combine}  ----------------->   which buffers it may write again
///     ids of every token          ----------------->   slots, by prefix sums over all sources
///     weights, if the dispatch has them ----------->   kept for the batch's combine
///     rows, one copy per rank     ----------------->   spread over the experts' packed rows
///                                  ... experts ...
///     weights, if not published before ------------>   weights and sums its experts' rows
///     waits for the sums         <-----------------    one partial sum per token and rank
///
/// 1. **The data is the flag.** Rows and partial sums are stored to staging that was filled with
///    0xff. Sixteen bytes are one atomic store and one atomic load, and no payload has a first word
///    of 0xffffffff (`canonical` ensures it). The reader of sixteen bytes stores 0xff back. No flag
///    and no fence follows the data.
/// 2. **Everything else is stamped.** Ids and weights carry their dispatch's epoch in the same
///    atomic word; nobody clears them, and those of another epoch are never accepted, nor are words
///    that no call has written: no stamp is zero. Ids also carry their dispatch's row format (see
///    8). Weights belong to a batch, not to a call: each
///    rank publishes its own in the dispatch or in the combine, as it chooses. They are stored
///    under the source's own number for the batch, 0 or 1, which the source reuses once it has
///    combined that batch. By then every rank that uses those weights has sent its partial sums: no
///    warp waits for a weight of a token for which it sends nothing or has sent everything, nor
///    sends a partial sum before it has the weights of its rows. So publishing weights waits for no
///    buffer. A token's only row on a rank is no sum: it is sent unchanged and its owner weights
///    it.
/// 3. **Two buffers, by parity of the epoch.** Dispatches and combines have separate epochs, each
///    counted on the device so that a CUDA graph can replay a call. Every kernel first publishes up
///    to which epoch its rank has drained its buffers; no rank writes for epoch e before its
///    destination has drained e - 2. In the usual order of calls, that was long ago.
/// 4. **A call has two parts**, sending and receiving, in one kernel or in one kernel each (hooks).
///    A sending part waits only for drained buffers and for weights; a block that only publishes
///    weights waits for neither.
/// 5. **Masks are local.** Each rank keeps a failure word per peer. The first wait for that peer
///    that fails sets the word: other waits for it give up too, and waits for other ranks continue.
///    A masked peer is no longer awaited, and blocks that begin later send nothing to it until the
///    mask is cleared. Its stores carry no epoch, so none of them is accepted any more: clearing
///    the mask refills its staging and ends the batches in progress, since some of their rows may
///    never have arrived.
/// 6. **A waiting rank sends heartbeats.** A rank that waits in vain for a dead one is late with
///    what others await from it, in this call or the next, and must not be mistaken for dead. So a
///    rank that waits for long sends heartbeats, and a rank whose heartbeat has changed is given
///    more time, up to kTimesLate times the call's timeout. This bounds the waits of ranks that
///    wait for one another, too.
/// 7. **Verdicts.** Slots depend on every source's ids, and the blocks of a rank must agree whether
///    a source took part: the first block that knows decides, by one compare-and-exchange per
///    source. A partial sum counts whole or not at all: if any warp of the block that finishes a
///    token lacks a part of it, the block sums the token again without it. As long as any warp may,
///    only a warp that holds the content of a place empties it.
/// 8. **Ranks whose formats differ never accept each other's data.** An ids stamp with another
///    format is not the awaited stamp, so such a source is absent. Partial sums in either format
///    have a piece where the other format has none, so one in the wrong format is never complete. A
///    wait that lasts checks for such a difference, masks the rank and names the difference.
/// 9. **An id that is no expert counts as -1** wherever ids are read, on its own rank, so no other
///    rank notices. The host is told the first such choice of a dispatch.
/// 10. **A rank that takes another's slot counts from beyond it.** The dead rank may have sent for
///    two epochs after the last that its destination had drained (3). All ranks begin after these,
///    with refilled staging, so no ids or weights of the dead rank carry an epoch of its successor.
/// 11. **The place of a choice is decided once**, by a kernel before the dispatch's
///    (place_choices.hpp), so the blocks of a dispatch agree on it whoever is masked meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/memory.hpp"

namespace tokenyard::low_latency {

inline constexpr uint32_t kRanksMax = 1u << 16;  ///< a plan of sums holds ranks in 16 bits
inline constexpr uint32_t kTopkMax = 16;

/// Content of empty staging.
inline constexpr uint32_t kEmpty = 0xffffffff;
TOKENYARD_HOST_DEVICE Bytes16 empty_piece() {
  return {{kEmpty, kEmpty, kEmpty, kEmpty}};
}
TOKENYARD_HOST_DEVICE bool has_come(const Bytes16& piece) {
  return piece.word[0] != kEmpty;
}

/// Returns the first word of a payload that no conversion of ours produced, made distinct from an
/// empty one: a word of NaNs becomes other NaNs. `nans` is 0x7fff7fff for BF16, 0x7f7f7f7f for FP8,
/// 0x7fffffff for fp32.
TOKENYARD_HOST_DEVICE uint32_t canonical(uint32_t word, uint32_t nans) {
  return word == kEmpty ? nans : word;
}

TOKENYARD_HOST_DEVICE uint32_t parity_of(uint32_t epoch) {
  return epoch & 1;
}

/// Longest wait for a rank that shows signs of life, in multiples of the call's timeout.
inline constexpr uint32_t kTimesLate = 4;
/// Unit of time since a kernel's start: 32 bits of it are more than an hour.
inline constexpr uint32_t kTimeUnitNs = 1024;
/// Heartbeats per timeout.
inline constexpr uint32_t kHeartbeats = 4;
/// Longest time between two reads of the abort flag by a waiting thread, in kTimeUnitNs: some 2 ms.
inline constexpr uint32_t kLookUnitsMax = 2048;

/// Which of the two exchanges a call belongs to.
enum class Kind : uint32_t { dispatch, combine };
inline constexpr uint32_t kKinds = 2;

/// The part of its call that a kernel does.
enum class Part : uint32_t { send = 1, receive = 2, both = 3 };
TOKENYARD_HOST_DEVICE bool sends(Part part) {
  return part != Part::receive;
}
TOKENYARD_HOST_DEVICE bool receives(Part part) {
  return part != Part::send;
}

/// Epochs up to which a rank has read its staging and emptied what it read.
struct alignas(8) Drained {
  uint32_t dispatch, combine;
  TOKENYARD_HOST_DEVICE uint32_t of(Kind kind) const {
    return kind == Kind::dispatch ? dispatch : combine;
  }
};

/// Returns the stamp of a batch's weights: the epoch of its dispatch modulo 2^31, and a bit, since
/// epoch 0 must differ from words that no call has written.
TOKENYARD_HOST_DEVICE uint32_t weights_stamp(uint32_t dispatched) {
  return dispatched << 1 | 1;
}
TOKENYARD_HOST_DEVICE uint32_t epoch_of_weights(uint32_t stamp) {
  return stamp >> 1;
}

/// Stamp of an ids word: the epoch of its dispatch modulo 2^29, a bit as in weights_stamp, and the
/// format of that dispatch's rows.
struct IdsStamp {
  static constexpr uint32_t kFormatBits = 2, kFormats = 1u << kFormatBits;
  uint32_t word;

  TOKENYARD_HOST_DEVICE static IdsStamp of(uint32_t epoch, uint32_t format) {
    return {(epoch << 1 | 1) << kFormatBits | format};
  }
  TOKENYARD_HOST_DEVICE uint32_t epoch() const { return word >> (kFormatBits + 1); }
  TOKENYARD_HOST_DEVICE uint32_t format() const { return word & (kFormats - 1); }
  TOKENYARD_HOST_DEVICE bool operator==(const IdsStamp& other) const { return word == other.word; }
  /// Returns whether both are of one epoch, in two formats. A word that no call has written is of
  /// none.
  TOKENYARD_HOST_DEVICE bool differs_in_format(const IdsStamp& other) const {
    return word != other.word && word >> kFormatBits == other.word >> kFormatBits;
  }
};

/// Eight choices of a token as the destination's local experts, twelve bits each, with their stamp:
/// one atomic word.
struct PackedIds {
  static constexpr uint32_t kIds = 8, kBits = 12;
  static constexpr uint32_t kNone = (1u << kBits) - 1;
  static constexpr uint32_t kStampWord = 3;
  Bytes16 piece;

  TOKENYARD_HOST_DEVICE static PackedIds of_stamp(IdsStamp stamp) {
    return {{{0, 0, 0, stamp.word}}};
  }
  TOKENYARD_HOST_DEVICE IdsStamp stamp() const { return {piece.word[kStampWord]}; }
  /// Sets a place; at most once per place. With a constant `place` it needs no memory.
  TOKENYARD_HOST_DEVICE void set(uint32_t place, uint32_t id) {
    const uint32_t bit = place * kBits, word = bit / 32, shift = bit % 32;
    piece.word[word] |= id << shift;
    if (shift + kBits > 32) piece.word[word + 1] |= id >> (32 - shift);
  }
  /// Uses shifts, so that a variable `place` needs no memory.
  TOKENYARD_HOST_DEVICE uint32_t get(uint32_t place) const {
    const uint64_t low = piece.word[0] | uint64_t{piece.word[1]} << 32;
    const uint64_t high = piece.word[1] | uint64_t{piece.word[2]} << 32;
    const uint32_t bit = place * kBits;
    return static_cast<uint32_t>(bit + kBits <= 64 ? low >> bit : high >> (bit - 32)) & kNone;
  }
};
inline constexpr uint32_t kLocalExpertsMax = PackedIds::kNone;

TOKENYARD_HOST_DEVICE uint32_t packed_ids_of(uint32_t topk) {
  return (topk + PackedIds::kIds - 1) / PackedIds::kIds;
}

/// The token and choices that an ids word describes.
struct IdsPlace {
  uint32_t token;
  uint32_t first;  ///< first of its choices

  TOKENYARD_HOST_DEVICE static IdsPlace of(uint32_t index, uint32_t topk) {
    static_assert(kTopkMax <= 2 * PackedIds::kIds, "one word or two a token");
    const uint32_t second = packed_ids_of(topk) - 1;
    return {index >> second, (index & second) * PackedIds::kIds};
  }
};

}  // namespace tokenyard::low_latency
