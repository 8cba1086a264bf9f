/// Control words that ranks exchange. Each rank has one window: its peers write it, only it reads
/// it.
///
///     ready[source]                       the source has started a call: which one, its row
///                                         format, and where its buffer is (now writable or
///                                         readable)
///     count[source][block][destination]   rows that this block of the source sends there; every
///                                         rank gets all counts, so slots need no second exchange
///     expert[source][block][expert]       tokens of that block for an expert of this rank
///     refusal[source][block]              why a block refuses the call, if its counts say so
///     finished[source][block]             that block has completed its last store or load
///
/// A dispatch that groups rows by expert as they arrive also uses
///
///     published[source][block]            the metadata of that block's rows has arrived
///     arrived[row]                        that received row has arrived
///
/// A combine whose rows become readable after its ready words reuses `arrived` as
///
///     prepared[token][source]             the row of that token can be read on the source
///
/// Every word carries the epoch of its call and is never cleared. The next call may overwrite a
/// word: no rank ends a call before every block of every rank has finished it, and a block finishes
/// only after it has read all that it needs. Words are indexed by source block, so ranks may run
/// with different numbers of blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/memory.hpp"
#include "device/peer.hpp"
#include "device/peers.hpp"
#include "expert_parallel/throughput/kernels/element_type.hpp"

namespace tokenyard::throughput {

/// The words of ready[source], each a Stamped of its own. `rows` is where rows begin; `beside` is
/// where the metadata ends (dispatch) or the weights begin (combine).
enum class ReadyWord : uint32_t { call, route, format, scales, rows, places, beside };
inline constexpr uint32_t kReadyWords = 7;

/// The call that a rank makes. All ranks must make the same one.
enum class CallKind : uint32_t { dispatch = 1, dispatch_again, combine, dispatch_by_expert };

/// Returns whether ranks exchange counts in the call, which can carry a refusal.
TOKENYARD_HOST_DEVICE bool exchanges_counts(CallKind kind) {
  return kind == CallKind::dispatch || kind == CallKind::dispatch_by_expert;
}

/// Whether a combine also returns weights. A rank with neither rows nor tokens cannot know:
/// `either`.
enum class Weights : uint32_t { without, with, either };

/// ReadyWord::call. Kind and weights must agree among ranks. The number of blocks, and whether a
/// combine's rows become readable later (`prepared` words), need not.
struct CallWord {
  uint32_t bits;
  static constexpr uint32_t kBlocksMax = 0xffff, kComesLater = 1u << 31;
  TOKENYARD_HOST_DEVICE static CallWord of(CallKind kind, Weights weights, bool comes_later,
                                           uint32_t blocks) {
    return {(comes_later ? kComesLater : 0) | static_cast<uint32_t>(kind) << 18 |
            static_cast<uint32_t>(weights) << 16 | blocks};
  }
  TOKENYARD_HOST_DEVICE CallKind kind() const {
    return static_cast<CallKind>((bits & ~kComesLater) >> 18);
  }
  TOKENYARD_HOST_DEVICE bool comes_later() const { return (bits & kComesLater) != 0; }
  TOKENYARD_HOST_DEVICE Weights weights() const { return static_cast<Weights>(bits >> 16 & 3); }
  TOKENYARD_HOST_DEVICE uint32_t blocks() const { return bits & kBlocksMax; }
  TOKENYARD_HOST_DEVICE bool agrees_with(CallWord other) const {
    return kind() == other.kind() &&
           (weights() == other.weights() || weights() == Weights::either ||
            other.weights() == Weights::either);
  }
};

/// ReadyWord::format: the format of a row. Must agree among ranks.
struct FormatWord {
  uint32_t bits;
  TOKENYARD_HOST_DEVICE static FormatWord of(ElementType type, uint32_t row_bytes) {
    return {row_bytes | static_cast<uint32_t>(type)};  // Rows are multiples of 16 bytes.
  }
  TOKENYARD_HOST_DEVICE ElementType type() const { return static_cast<ElementType>(bits & 15); }
  TOKENYARD_HOST_DEVICE uint32_t row_bytes() const { return bits & ~15u; }
};

/// ReadyWord::scales: the scales of a row. Must agree among ranks.
struct ScalesWord {
  uint32_t bits;
  /// `unused`: exponents of the last word that belong to no channel, if exponents are packed.
  /// Reveals ranks whose casts use other channel groups but the same number of words.
  TOKENYARD_HOST_DEVICE static ScalesWord of(uint32_t words, ScaleOrder order, ScaleType type,
                                             uint32_t unused = 0) {
    return {words << 5 | unused << 3 | static_cast<uint32_t>(type) << 1 |
            static_cast<uint32_t>(order)};
  }
  TOKENYARD_HOST_DEVICE uint32_t words() const { return bits >> 5; }
  TOKENYARD_HOST_DEVICE uint32_t unused() const { return bits >> 3 & 3; }
  TOKENYARD_HOST_DEVICE ScaleType type() const { return static_cast<ScaleType>(bits >> 1 & 3); }
  TOKENYARD_HOST_DEVICE ScaleOrder order() const { return static_cast<ScaleOrder>(bits & 1); }
};
inline constexpr uint32_t kScaleWordsMax = 1u << 24;

/// Unit of buffer offsets from the arena's base: the arena's alignment, so a word can address a
/// tebibyte.
inline constexpr uint32_t kOffsetUnit = 256;

/// Count of a block that sends no rows because it refuses one of its tokens.
inline constexpr uint32_t kRefused = 0xffffffff;

/// Reasons to refuse a call. `overflow` and `format` concern ranks, not tokens: a rank would
/// receive more rows than it has places for; a rank's row format or scales differ from those of the
/// first present rank.
enum class RefusalKind : uint32_t { none, out_of_range, twice, overflow, format };

/// Why a block refuses the call: its first token with an invalid expert id. Each of the three words
/// is stamped, so their order of arrival does not matter.
struct Refusal {
  Stamped token_and_kind;  ///< token << 2 | kind
  Stamped id_low, id_high;
};

/// Offset of each word in a window. Host and kernels share this type.
struct ControlLayout {
  uint32_t ranks, blocks_max;
  uint32_t local_experts_max;  ///< largest over ranks, so that all windows have one layout
  uint32_t rows_max = 0;       ///< rows that a rank may receive per call

  TOKENYARD_HOST_DEVICE size_t ready_word(uint32_t source, ReadyWord word) const {
    return (size_t{source} * kReadyWords + static_cast<uint32_t>(word)) * sizeof(Stamped);
  }
  TOKENYARD_HOST_DEVICE size_t count(uint32_t source, uint32_t block, uint32_t destination) const {
    return counts_at() + (slot(source, block) * ranks + destination) * sizeof(Stamped);
  }
  TOKENYARD_HOST_DEVICE size_t expert(uint32_t source, uint32_t block,
                                      uint32_t local_expert) const {
    return experts_at() +
           (slot(source, block) * local_experts_max + local_expert) * sizeof(Stamped);
  }
  TOKENYARD_HOST_DEVICE size_t refusal(uint32_t source, uint32_t block) const {
    return refusals_at() + slot(source, block) * sizeof(Refusal);
  }
  TOKENYARD_HOST_DEVICE size_t finished(uint32_t source, uint32_t block) const {
    return finished_at() + slot(source, block) * sizeof(uint32_t);
  }
  TOKENYARD_HOST_DEVICE size_t published(uint32_t source, uint32_t block) const {
    return finished(source, block) + slots() * sizeof(uint32_t);
  }
  TOKENYARD_HOST_DEVICE size_t arrived(uint32_t row) const {
    return finished_at() + (2 * slots() + row) * sizeof(uint32_t);
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const { return arrived(rows_max); }

 private:
  TOKENYARD_HOST_DEVICE size_t slots() const { return size_t{ranks} * blocks_max; }
  TOKENYARD_HOST_DEVICE size_t slot(uint32_t source, uint32_t block) const {
    return size_t{source} * blocks_max + block;
  }
  TOKENYARD_HOST_DEVICE size_t counts_at() const {
    return size_t{ranks} * kReadyWords * sizeof(Stamped);
  }
  TOKENYARD_HOST_DEVICE size_t experts_at() const {
    return counts_at() + slots() * ranks * sizeof(Stamped);
  }
  TOKENYARD_HOST_DEVICE size_t refusals_at() const {
    return experts_at() + slots() * local_experts_max * sizeof(Stamped);
  }
  TOKENYARD_HOST_DEVICE size_t finished_at() const {
    return refusals_at() + slots() * sizeof(Refusal);
  }
};

/// The windows of all ranks, as one rank's kernels address them.
struct Control {
  Peers windows;
  ControlLayout layout;

  TOKENYARD_DEVICE Peer<Stamped> ready_word(uint32_t rank, uint32_t source, ReadyWord word) const {
    return at<Stamped>(rank, layout.ready_word(source, word));
  }
  TOKENYARD_DEVICE Peer<Stamped> count(uint32_t rank, uint32_t source, uint32_t block,
                                       uint32_t destination) const {
    return at<Stamped>(rank, layout.count(source, block, destination));
  }
  TOKENYARD_DEVICE Peer<Stamped> expert(uint32_t rank, uint32_t source, uint32_t block,
                                        uint32_t local_expert) const {
    return at<Stamped>(rank, layout.expert(source, block, local_expert));
  }
  TOKENYARD_DEVICE Peer<Refusal> refusal(uint32_t rank, uint32_t source, uint32_t block) const {
    return at<Refusal>(rank, layout.refusal(source, block));
  }
  TOKENYARD_DEVICE Peer<uint32_t> finished(uint32_t rank, uint32_t source, uint32_t block) const {
    return at<uint32_t>(rank, layout.finished(source, block));
  }
  TOKENYARD_DEVICE Peer<uint32_t> published(uint32_t rank, uint32_t source, uint32_t block) const {
    return at<uint32_t>(rank, layout.published(source, block));
  }
  TOKENYARD_DEVICE Peer<uint32_t> arrived(uint32_t rank, uint32_t row) const {
    return at<uint32_t>(rank, layout.arrived(row));
  }
  TOKENYARD_DEVICE Peer<uint32_t> prepared(uint32_t rank, uint32_t token, uint32_t source) const {
    return at<uint32_t>(rank, layout.arrived(token * layout.ranks + source));
  }

 private:
  template <class T>
  TOKENYARD_DEVICE Peer<T> at(uint32_t rank, size_t offset) const {
    return (windows.of(rank) + static_cast<std::ptrdiff_t>(offset)).template as<T>();
  }
};

}  // namespace tokenyard::throughput
