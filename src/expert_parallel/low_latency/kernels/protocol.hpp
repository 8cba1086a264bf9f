/// The low-latency protocol: what ranks tell each other when a call has no time for a second look.
///
///     source                                           destination
///     drained{dispatch, combine}  ----------------->   knows which buffers it may write again
///     ids of every token          ----------------->   slots, by prefix sums over all sources
///     weights, if dispatch has them -------------->    kept for the batch's combine
///     rows, a copy a rank         ----------------->   spread over the experts' packed rows
///                                  ... experts ...
///     weights, if not told before ----------------->   weighs and sums its experts' rows
///     waits for the sums         <-----------------    a row of sums a token and rank
///
/// 1. **The data is the flag.** Rows and sums lie in staging that was filled with 0xff. Sixteen
///    bytes are one atomic store and one atomic load, and no payload holds a first word of
///    0xffffffff (`canonical` sees to it). Whoever has read sixteen bytes puts 0xff back. No flag
///    and no fence follows the data.
/// 2. **Everything else is stamped.** Ids and weights carry their dispatch's epoch in the same
///    atomic word; nobody clears them, and those of another epoch are never taken. Ids carry the
///    format of their dispatch's rows as well, see 8. Weights belong
///    to a batch and not to a call: each rank tells its own in the dispatch or in the combine, as
///    it likes. They lie by the source's own number for the batch, 0 or 1, whose place the source
///    uses again when it has combined that batch. By then all who go by weights there have sent it
///    their sums: no warp awaits a weight of a token of which it sends nothing or has sent all, nor
///    sends a sum before it has the weights of its rows. So weights wait for no room. A row that is
///    alone, the only one of its token on a rank, is no sum: it is sent as it is and weighed by the
///    owner.
/// 3. **Two buffers by the parity of the epoch.** Dispatches and combines count their epochs
///    apart, each on the device, so that a CUDA graph can replay a call. A rank says in every
///    kernel, first of all, up to which epoch it has drained its buffers; nobody writes for epoch e
///    before its destination has drained e - 2. In the usual order of calls that was long ago.
/// 4. **A call has two parts**, sending and receiving, in one kernel or in one each (hooks). A
///    sending part waits for room and weights only, and what tells only weights for neither.
/// 5. **Masks.** Each rank that is awaited has a failure word of its own. The first wait that fails
///    sets it: other waits for that rank give up as well, those for other ranks go on. A rank so
///    masked is waited for by nobody and gets nothing from blocks that begin later, until the mask
///    is cleared. What it still sends carries no epoch, so nothing of it is received: clearing
///    refills its staging, and ends the batches under way, of whose rows some may never have come.
/// 6. **Who waits says so.** A rank that waits in vain for a dead one is late with what others
///    await of it, in this call or the next, and must not be taken for dead itself. So whoever
///    waits for long sends pulses, and a rank whose pulse has changed is given more time, up to
///    kTimesLate times the call's. Ranks that wait for one another therefore end as well.
/// 7. **Verdicts.** Slots of all sources depend on every source's ids, and the blocks of a rank
///    must agree whether a source took part: the first block that knows decides, by one
///    compare-and-exchange a source. A row of sums counts whole or not at all: if some warp of the
///    block that finishes a token lacks a part of it, the token is added anew without it. Until no
///    warp can, places of the token's rows are emptied only by who has in hand what lay there.
/// 8. **Ranks that differ in a format never take each other's data.** A stamp of ids in another
///    format is not the stamp awaited, so such a source is absent. Rows of sums in either format
///    have a piece where the other format has none, so that a row in the wrong one is never
///    complete. A wait that lasts looks for such a difference; it masks the rank and names it.
/// 9. **An id that is no expert counts as -1** wherever ids are read, on its own rank, so that no
///    other rank hears of it. The host is told of the first such pick of a dispatch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/memory.hpp"

namespace tokenyard::low_latency {

inline constexpr uint32_t kRanksMax = 128;
inline constexpr uint32_t kTopkMax = 16;

/// What staging holds where nothing has come.
inline constexpr uint32_t kEmpty = 0xffffffff;
HOST_DEVICE Bytes16 empty_piece() {
  return {{kEmpty, kEmpty, kEmpty, kEmpty}};
}
HOST_DEVICE bool has_come(const Bytes16& piece) {
  return piece.word[0] != kEmpty;
}

/// The first word of a payload that does not come from a conversion of ours, so that it can be told
/// from an empty one: a word of NaNs becomes one of other NaNs. `nans` is 0x7fff7fff for BF16,
/// 0x7f7f7f7f for FP8, 0x7fffffff for fp32.
HOST_DEVICE uint32_t canonical(uint32_t word, uint32_t nans) {
  return word == kEmpty ? nans : word;
}

HOST_DEVICE uint32_t parity_of(uint32_t epoch) {
  return epoch & 1;
}

/// The longest that a call waits for a rank that shows it is alive, in times of the call's timeout.
inline constexpr uint32_t kTimesLate = 4;
/// Kernels count time since their start in these: 32 bits of them are more than an hour.
inline constexpr uint32_t kTimeUnitNs = 1024;
/// Pulses in the time of a timeout.
inline constexpr uint32_t kHeartbeats = 4;
/// How long a waiting thread may not look at the alarm, in kTimeUnitNs: some 2 ms.
inline constexpr uint32_t kLookUnitsMax = 2048;

/// Which of the two exchanges a call belongs to.
enum class Kind : uint32_t { dispatch, combine };
inline constexpr uint32_t kKinds = 2;

/// What a kernel does of its call.
enum class Part : uint32_t { send = 1, receive = 2, both = 3 };
HOST_DEVICE bool sends(Part part) {
  return part != Part::receive;
}
HOST_DEVICE bool receives(Part part) {
  return part != Part::send;
}

/// Epochs up to which a rank has read its staging and put back what it read.
struct alignas(8) Drained {
  uint32_t dispatch, combine;
  HOST_DEVICE uint32_t of(Kind kind) const { return kind == Kind::dispatch ? dispatch : combine; }
};

/// A set of ranks, passed by value.
struct RankSet {
  uint32_t words[kRanksMax / 32];

  HOST_DEVICE bool contains(uint32_t rank) const { return words[rank / 32] >> rank % 32 & 1; }
  void insert(uint32_t rank) { words[rank / 32] |= 1u << rank % 32; }
  void erase(uint32_t rank) { words[rank / 32] &= ~(1u << rank % 32); }
  static RankSet first(uint32_t ranks) {
    RankSet set{};
    for (uint32_t rank = 0; rank < ranks; ++rank) set.insert(rank);
    return set;
  }
};

/// What a word of ids belongs to: the epoch of its dispatch, less multiples of 2^30, and the format
/// of that dispatch's rows.
struct IdsStamp {
  static constexpr uint32_t kFormatBits = 2, kFormats = 1u << kFormatBits;
  uint32_t word;

  HOST_DEVICE static IdsStamp of(uint32_t epoch, uint32_t format) {
    return {epoch << kFormatBits | format};
  }
  HOST_DEVICE uint32_t epoch() const { return word >> kFormatBits; }
  HOST_DEVICE uint32_t format() const { return word & (kFormats - 1); }
  HOST_DEVICE bool operator==(const IdsStamp& other) const { return word == other.word; }
  HOST_DEVICE bool differs_in_format(const IdsStamp& other) const {
    return word != other.word && epoch() == other.epoch();
  }
};

/// Eight picks of a token as the destination's local experts, twelve bits each, with their stamp:
/// one atomic word.
struct PackedIds {
  static constexpr uint32_t kIds = 8, kBits = 12;
  static constexpr uint32_t kNone = (1u << kBits) - 1;
  static constexpr uint32_t kStampWord = 3;
  Bytes16 piece;

  HOST_DEVICE static PackedIds of_stamp(IdsStamp stamp) { return {{{0, 0, 0, stamp.word}}}; }
  HOST_DEVICE IdsStamp stamp() const { return {piece.word[kStampWord]}; }
  /// Each place is set once. With a constant `place` it needs no memory.
  HOST_DEVICE void set(uint32_t place, uint32_t id) {
    const uint32_t bit = place * kBits, word = bit / 32, shift = bit % 32;
    piece.word[word] |= id << shift;
    if (shift + kBits > 32) piece.word[word + 1] |= id >> (32 - shift);
  }
  /// By shifts, so that no `place` needs memory.
  HOST_DEVICE uint32_t get(uint32_t place) const {
    const uint64_t low = piece.word[0] | uint64_t{piece.word[1]} << 32;
    const uint64_t high = piece.word[1] | uint64_t{piece.word[2]} << 32;
    const uint32_t bit = place * kBits;
    return static_cast<uint32_t>(bit + kBits <= 64 ? low >> bit : high >> (bit - 32)) & kNone;
  }
};
inline constexpr uint32_t kLocalExpertsMax = PackedIds::kNone;

HOST_DEVICE uint32_t packed_ids_of(uint32_t topk) {
  return (topk + PackedIds::kIds - 1) / PackedIds::kIds;
}

/// What one of the words that tell of a rank's tokens is about.
struct IdsPlace {
  uint32_t token;
  uint32_t first;  ///< of its picks

  HOST_DEVICE static IdsPlace of(uint32_t index, uint32_t topk) {
    static_assert(kTopkMax <= 2 * PackedIds::kIds, "one word or two a token");
    const uint32_t second = packed_ids_of(topk) - 1;
    return {index >> second, (index & second) * PackedIds::kIds};
  }
};

}  // namespace tokenyard::low_latency
