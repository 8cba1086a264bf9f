/// The words that ranks tell each other, in one window a rank: written by its peers, read by
/// itself.
///
///     hello[source]                       the source has started a call; which, of what rows, and
///                                         where its buffer lies (which is thereby free, or
///                                         readable)
///     count[source][block][destination]   rows that this block of the source sends there; every
///                                         rank gets all of them, so slots need no second exchange
///     expert[source][block][expert]       tokens of that block for an expert of this rank
///     refusal[source][block]              why a block refuses the call, if its counts say so
///     finished[source][block]             that block has stored, or read, all that it will
///
/// In a dispatch whose rows are grouped by expert as they come, also:
///
///     told[source][block]                 what travels beside that block's rows is here
///     arrived[row]                        that received row is here
///
/// In a combine whose rows come later than its hellos, the words of `arrived` are
///
///     prepared[token][source]             the row of that token can be read on the source
///
/// Every word carries the epoch of its call, and nobody clears any. A word may be overwritten for
/// the next call because no rank ends a call before every block of every rank has finished it, and
/// a block finishes after it has read all it needs. Words are indexed by source block, so ranks may
/// run with different numbers of blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/memory.hpp"
#include "device/peer.hpp"
#include "expert_parallel/common/peers.hpp"
#include "expert_parallel/throughput/kernels/element_type.hpp"

namespace tokenyard::throughput {

/// What a hello consists of, each a Stamped of its own. `rows` is where rows begin, `beside` where
/// what travels beside them ends (dispatch) or where the weights begin (combine).
enum class ReadyWord : uint32_t { call, route, format, scales, rows, places, beside };
inline constexpr uint32_t kReadyWords = 7;

/// Which call a rank has made. All ranks must make the same one.
enum class CallKind : uint32_t { dispatch = 1, dispatch_again, combine, dispatch_by_expert };

/// Whether a combine brings weights home too. A rank that has neither rows nor tokens cannot tell.
enum class Weights : uint32_t { without, with, either };

/// ReadyWord::call: what must agree; and the source's number of blocks and, in a combine, whether
/// its rows come later, as other words tell: neither needs to.
struct CallWord {
  uint32_t bits;
  static constexpr uint32_t kBlocksMax = 0xffff, kComesLater = 1u << 31;
  HOST_DEVICE static CallWord of(CallKind kind, Weights weights, bool comes_later,
                                 uint32_t blocks) {
    return {(comes_later ? kComesLater : 0) | static_cast<uint32_t>(kind) << 18 |
            static_cast<uint32_t>(weights) << 16 | blocks};
  }
  HOST_DEVICE CallKind kind() const { return static_cast<CallKind>((bits & ~kComesLater) >> 18); }
  HOST_DEVICE bool comes_later() const { return (bits & kComesLater) != 0; }
  HOST_DEVICE Weights weights() const { return static_cast<Weights>(bits >> 16 & 3); }
  HOST_DEVICE uint32_t blocks() const { return bits & kBlocksMax; }
  HOST_DEVICE bool agrees_with(CallWord other) const {
    return kind() == other.kind() &&
           (weights() == other.weights() || weights() == Weights::either ||
            other.weights() == Weights::either);
  }
};

/// ReadyWord::format: what a row is made of, which must agree.
struct FormatWord {
  uint32_t bits;
  HOST_DEVICE static FormatWord of(ElementType type, uint32_t row_bytes) {
    return {row_bytes | static_cast<uint32_t>(type)};  // Rows are multiples of 16 bytes.
  }
  HOST_DEVICE ElementType type() const { return static_cast<ElementType>(bits & 15); }
  HOST_DEVICE uint32_t row_bytes() const { return bits & ~15u; }
};

/// ReadyWord::scales: what travels beside a row, which must agree.
struct ScalesWord {
  uint32_t bits;
  /// `unused`: exponents of the last word that no channel has, where they are packed; so that ranks
  /// hear of it which cast with other groups of channels to as many words.
  HOST_DEVICE static ScalesWord of(uint32_t words, ScaleOrder order, ScaleType type,
                                   uint32_t unused = 0) {
    return {words << 5 | unused << 3 | static_cast<uint32_t>(type) << 1 |
            static_cast<uint32_t>(order)};
  }
  HOST_DEVICE uint32_t words() const { return bits >> 5; }
  HOST_DEVICE uint32_t unused() const { return bits >> 3 & 3; }
  HOST_DEVICE ScaleType type() const { return static_cast<ScaleType>(bits >> 1 & 3); }
  HOST_DEVICE ScaleOrder order() const { return static_cast<ScaleOrder>(bits & 1); }
};
inline constexpr uint32_t kScaleWordsMax = 1u << 24;

/// Buffers are told by their distance from the arena's base in these units: what the arena aligns
/// to, so that a word reaches a tebibyte.
inline constexpr uint32_t kOffsetUnit = 256;

/// A count that says: no rows, this block has found a token that it refuses.
inline constexpr uint32_t kRefused = 0xffffffff;

/// `overflow` and `format` are no token's: more rows would come to a rank than it has places for; a
/// rank sends other rows or scales than rank 0.
enum class RefusalKind : uint32_t { none, out_of_range, twice, overflow, format };

/// Why a block refuses the call: the first of its tokens with an impossible expert id. Three
/// stamped words, so that nothing hangs on the order in which they arrive.
struct Refusal {
  Stamped token_and_kind;  ///< token << 2 | kind
  Stamped id_low, id_high;
};

/// Where each word lies in a window. Host and kernels use this one type.
struct ControlLayout {
  uint32_t ranks, blocks_max;
  uint32_t local_experts_max;  ///< of a rank: words lie alike in all windows
  uint32_t rows_max = 0;       ///< that a rank may receive in a call

  HOST_DEVICE size_t ready_word(uint32_t source, ReadyWord word) const {
    return (size_t{source} * kReadyWords + static_cast<uint32_t>(word)) * sizeof(Stamped);
  }
  HOST_DEVICE size_t count(uint32_t source, uint32_t block, uint32_t destination) const {
    return counts_at() + (slot(source, block) * ranks + destination) * sizeof(Stamped);
  }
  HOST_DEVICE size_t expert(uint32_t source, uint32_t block, uint32_t local_expert) const {
    return experts_at() +
           (slot(source, block) * local_experts_max + local_expert) * sizeof(Stamped);
  }
  HOST_DEVICE size_t refusal(uint32_t source, uint32_t block) const {
    return refusals_at() + slot(source, block) * sizeof(Refusal);
  }
  HOST_DEVICE size_t finished(uint32_t source, uint32_t block) const {
    return finished_at() + slot(source, block) * sizeof(uint32_t);
  }
  HOST_DEVICE size_t published(uint32_t source, uint32_t block) const {
    return finished(source, block) + slots() * sizeof(uint32_t);
  }
  HOST_DEVICE size_t arrived(uint32_t row) const {
    return finished_at() + (2 * slots() + row) * sizeof(uint32_t);
  }
  HOST_DEVICE size_t bytes() const { return arrived(rows_max); }

 private:
  HOST_DEVICE size_t slots() const { return size_t{ranks} * blocks_max; }
  HOST_DEVICE size_t slot(uint32_t source, uint32_t block) const {
    return size_t{source} * blocks_max + block;
  }
  HOST_DEVICE size_t counts_at() const { return size_t{ranks} * kReadyWords * sizeof(Stamped); }
  HOST_DEVICE size_t experts_at() const { return counts_at() + slots() * ranks * sizeof(Stamped); }
  HOST_DEVICE size_t refusals_at() const {
    return experts_at() + slots() * local_experts_max * sizeof(Stamped);
  }
  HOST_DEVICE size_t finished_at() const { return refusals_at() + slots() * sizeof(Refusal); }
};

/// The windows of all ranks, as a kernel of one of them addresses their words.
struct Control {
  Peers windows;
  ControlLayout layout;

  DEVICE Peer<Stamped> ready_word(uint32_t rank, uint32_t source, ReadyWord word) const {
    return at<Stamped>(rank, layout.ready_word(source, word));
  }
  DEVICE Peer<Stamped> count(uint32_t rank, uint32_t source, uint32_t block,
                             uint32_t destination) const {
    return at<Stamped>(rank, layout.count(source, block, destination));
  }
  DEVICE Peer<Stamped> expert(uint32_t rank, uint32_t source, uint32_t block,
                              uint32_t local_expert) const {
    return at<Stamped>(rank, layout.expert(source, block, local_expert));
  }
  DEVICE Peer<Refusal> refusal(uint32_t rank, uint32_t source, uint32_t block) const {
    return at<Refusal>(rank, layout.refusal(source, block));
  }
  DEVICE Peer<uint32_t> finished(uint32_t rank, uint32_t source, uint32_t block) const {
    return at<uint32_t>(rank, layout.finished(source, block));
  }
  DEVICE Peer<uint32_t> published(uint32_t rank, uint32_t source, uint32_t block) const {
    return at<uint32_t>(rank, layout.published(source, block));
  }
  DEVICE Peer<uint32_t> arrived(uint32_t rank, uint32_t row) const {
    return at<uint32_t>(rank, layout.arrived(row));
  }
  DEVICE Peer<uint32_t> prepared(uint32_t rank, uint32_t token, uint32_t source) const {
    return at<uint32_t>(rank, layout.arrived(token * layout.ranks + source));
  }

 private:
  template <class T>
  DEVICE Peer<T> at(uint32_t rank, size_t offset) const {
    return (windows.of(rank) + static_cast<std::ptrdiff_t>(offset)).template as<T>();
  }
};

}  // namespace tokenyard::throughput
