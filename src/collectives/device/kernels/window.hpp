/// A rank's window: what its peers write during calls. Zero before the first call.
///
///     call[parity][source]          what the source says of its call
///     slot[parity][source][piece]   eight bytes of data, the lower half of their call's epoch, and
///                                   its digest
///     packet[parity][source][piece]     sixteen bytes of data; zero if there are none
///     filled[parity][source][place]     the chunk in that place of the source's ring has come
///     consumed[parity][rank][place]     that rank has read the chunk in that place of its ring
///     tensors[parity][source]           where the source's input and result lie: two words
///     done[parity][source][block]       the source's block has moved all it moves
///     counts[parity][source][peer]      bytes that the source sends to and expects from the peer
///     channel_filled[source][place]     the chunk in that place of the source's channel has come
///     channel_consumed[rank][place]     that rank has read the chunk in that place of its channel
///     ring[parity][source][place]       a chunk
///     channel[source][place]            a chunk of a message
///
/// Every word carries its epoch, or the number of its chunk in a channel, and nobody clears it,
/// but for packets, which their reader empties; `counts` are released by call words. Parities are
/// those of epochs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/device/kernels/call_word.hpp"
#include "collectives/device/kernels/pieces.hpp"
#include "device/peers.hpp"

namespace tokenyard::device_collectives {

inline constexpr uint32_t kBlocksMax = 256;

/// Eight bytes of data and their stamp, stored and loaded in one access.
struct Slot {
  Bytes16 bits;

  TOKENYARD_HOST_DEVICE static Slot of(const Piece8& data, uint32_t epoch, uint32_t digest) {
    return {{{data.word[0], data.word[1], epoch, digest}}};
  }
  TOKENYARD_HOST_DEVICE bool is_of(uint32_t epoch, uint32_t digest) const {
    return bits.word[2] == epoch && bits.word[3] == digest;
  }
  TOKENYARD_HOST_DEVICE Piece8 data() const { return {{bits.word[0], bits.word[1]}}; }
};

/// The place of a rank's tensor in the arena, with the digest and epoch of its call.
struct TensorWord {
  Bytes16 bits;

  static constexpr uint32_t kBlocksBits = 16;

  /// `from_window`: bytes from the start of the rank's window to its tensor. `blocks`: of its
  /// launch.
  TOKENYARD_HOST_DEVICE static TensorWord of(uint32_t epoch, uint32_t digest, int64_t from_window,
                                             uint32_t blocks) {
    const uint64_t packed = static_cast<uint64_t>(from_window) << kBlocksBits | blocks;
    return {{{epoch, digest, static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> 32)}}};
  }
  TOKENYARD_HOST_DEVICE bool is_of(uint32_t epoch, uint32_t digest) const {
    return bits.word[0] == epoch && bits.word[1] == digest;
  }
  TOKENYARD_HOST_DEVICE int64_t from_window() const {
    return static_cast<int64_t>(packed()) >> kBlocksBits;
  }
  TOKENYARD_HOST_DEVICE uint32_t blocks() const {
    return static_cast<uint32_t>(packed()) & ((1u << kBlocksBits) - 1);
  }

 private:
  TOKENYARD_HOST_DEVICE uint64_t packed() const {
    return bits.word[2] | uint64_t{bits.word[3]} << 32;
  }
};

/// The bytes that a rank sends to a peer, and those that it expects from it.
struct CountWord {
  Bytes16 bits;

  static constexpr uint32_t kBits = 48;

  TOKENYARD_HOST_DEVICE static CountWord of(uint64_t sent, uint64_t expected) {
    return {{{static_cast<uint32_t>(sent), static_cast<uint32_t>(sent >> 32),
              static_cast<uint32_t>(expected), static_cast<uint32_t>(expected >> 32)}}};
  }
  TOKENYARD_HOST_DEVICE uint64_t sent() const {
    return bits.word[0] | uint64_t{bits.word[1]} << 32;
  }
  TOKENYARD_HOST_DEVICE uint64_t expected() const {
    return bits.word[2] | uint64_t{bits.word[3]} << 32;
  }
};

/// The rings of a window, one per source and parity.
struct RingLayout {
  uint32_t chunk_bytes;  ///< a multiple of 16
  uint32_t places;       ///< chunks of a ring
};

/// Offset of each word in a window, alike on all ranks.
struct WindowLayout {
  uint32_t ranks;
  uint32_t slots;    ///< per source and parity
  uint32_t packets;  ///< the same
  RingLayout rings;
  uint32_t channel_places;  ///< chunks of a channel, as long as those of rings

  TOKENYARD_HOST_DEVICE size_t call(uint32_t parity, uint32_t source) const {
    return (size_t{parity} * ranks + source) * sizeof(CallWord);
  }
  TOKENYARD_HOST_DEVICE size_t slot(uint32_t parity, uint32_t source, uint32_t piece) const {
    return call(2, 0) + ((size_t{parity} * ranks + source) * slots + piece) * sizeof(Slot);
  }
  /// `source`: another rank than the owner of the window, `owner`, which has none of its own.
  TOKENYARD_HOST_DEVICE size_t packet(uint32_t parity, uint32_t owner, uint32_t source) const {
    return packets_at() + (size_t{parity} * (ranks - 1) + peer_of(owner, source)) * packets * 16;
  }
  TOKENYARD_HOST_DEVICE size_t packets_at() const { return slot(2, 0, 0); }
  TOKENYARD_HOST_DEVICE size_t filled(uint32_t parity, uint32_t source, uint32_t place) const {
    return packets_at() + size_t{2} * (ranks - 1) * packets * 16 +
           ((size_t{parity} * ranks + source) * rings.places + place) * 16;
  }
  TOKENYARD_HOST_DEVICE size_t consumed(uint32_t parity, uint32_t rank, uint32_t place) const {
    return filled(2, 0, 0) + ((size_t{parity} * ranks + rank) * rings.places + place) * 16;
  }
  TOKENYARD_HOST_DEVICE size_t tensors(uint32_t parity, uint32_t source) const {
    return consumed(2, 0, 0) + (size_t{parity} * ranks + source) * 2 * sizeof(TensorWord);
  }
  TOKENYARD_HOST_DEVICE size_t done(uint32_t parity, uint32_t source, uint32_t block) const {
    return tensors(2, 0) + ((size_t{parity} * ranks + source) * kBlocksMax + block) * 16;
  }
  TOKENYARD_HOST_DEVICE size_t counts(uint32_t parity, uint32_t source, uint32_t peer) const {
    return done(2, 0, 0) + ((size_t{parity} * ranks + source) * ranks + peer) * sizeof(CountWord);
  }
  TOKENYARD_HOST_DEVICE size_t channel_filled(uint32_t source, uint32_t place) const {
    return counts(2, 0, 0) + (size_t{source} * channel_places + place) * 16;
  }
  TOKENYARD_HOST_DEVICE size_t channel_consumed(uint32_t rank, uint32_t place) const {
    return channel_filled(ranks, 0) + (size_t{rank} * channel_places + place) * 16;
  }
  /// `source`: as for `packet`.
  TOKENYARD_HOST_DEVICE size_t chunk(uint32_t parity, uint32_t owner, uint32_t source,
                                     uint32_t place) const {
    return chunks_at() +
           ((size_t{parity} * (ranks - 1) + peer_of(owner, source)) * rings.places + place) *
               rings.chunk_bytes;
  }
  /// Returns the bytes of words, which start as zero; chunks follow them.
  TOKENYARD_HOST_DEVICE size_t chunks_at() const { return channel_consumed(ranks, 0); }
  /// `source`: as for `packet`.
  TOKENYARD_HOST_DEVICE size_t channel(uint32_t owner, uint32_t source, uint32_t place) const {
    return channels_at() +
           (size_t{peer_of(owner, source)} * channel_places + place) * rings.chunk_bytes;
  }
  TOKENYARD_HOST_DEVICE size_t channels_at() const {
    return chunks_at() + size_t{2} * (ranks - 1) * rings.places * rings.chunk_bytes;
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const {
    return channels_at() + size_t{ranks - 1} * channel_places * rings.chunk_bytes;
  }

 private:
  /// Returns the number of a source among the ranks other than the owner.
  TOKENYARD_HOST_DEVICE static uint32_t peer_of(uint32_t owner, uint32_t source) {
    return source - (source > owner ? 1 : 0);
  }
};

/// The windows of all ranks, as one rank's kernels address them.
struct Windows {
  Peers peers;
  WindowLayout layout;

  TOKENYARD_DEVICE Peer<Bytes16> call(uint32_t rank, uint32_t parity, uint32_t source) const {
    return at(rank, layout.call(parity, source));
  }
  TOKENYARD_DEVICE Peer<Bytes16> slots(uint32_t rank, uint32_t parity, uint32_t source) const {
    return at(rank, layout.slot(parity, source, 0));
  }
  TOKENYARD_DEVICE Peer<Bytes16> packets(uint32_t rank, uint32_t parity, uint32_t source) const {
    return at(rank, layout.packet(parity, rank, source));
  }
  TOKENYARD_DEVICE Peer<Bytes16> filled(uint32_t rank, uint32_t parity, uint32_t source,
                                        uint32_t place) const {
    return at(rank, layout.filled(parity, source, place));
  }
  TOKENYARD_DEVICE Peer<Bytes16> consumed(uint32_t rank, uint32_t parity, uint32_t by,
                                          uint32_t place) const {
    return at(rank, layout.consumed(parity, by, place));
  }
  /// The word of a source's input; that of its result follows.
  TOKENYARD_DEVICE Peer<Bytes16> tensors(uint32_t rank, uint32_t parity, uint32_t source) const {
    return at(rank, layout.tensors(parity, source));
  }
  TOKENYARD_DEVICE Peer<Bytes16> done(uint32_t rank, uint32_t parity, uint32_t source,
                                      uint32_t block) const {
    return at(rank, layout.done(parity, source, block));
  }
  TOKENYARD_DEVICE Peer<std::byte> chunk(uint32_t rank, uint32_t parity, uint32_t source,
                                         uint32_t place) const {
    return peers.of(rank) + static_cast<std::ptrdiff_t>(layout.chunk(parity, rank, source, place));
  }
  TOKENYARD_DEVICE Peer<Bytes16> counts(uint32_t rank, uint32_t parity, uint32_t source,
                                        uint32_t peer) const {
    return at(rank, layout.counts(parity, source, peer));
  }
  TOKENYARD_DEVICE Peer<Bytes16> channel_filled(uint32_t rank, uint32_t source,
                                                uint32_t place) const {
    return at(rank, layout.channel_filled(source, place));
  }
  TOKENYARD_DEVICE Peer<Bytes16> channel_consumed(uint32_t rank, uint32_t by,
                                                  uint32_t place) const {
    return at(rank, layout.channel_consumed(by, place));
  }
  TOKENYARD_DEVICE Peer<std::byte> channel(uint32_t rank, uint32_t source, uint32_t place) const {
    return peers.of(rank) + static_cast<std::ptrdiff_t>(layout.channel(rank, source, place));
  }

 private:
  TOKENYARD_DEVICE Peer<Bytes16> at(uint32_t rank, size_t offset) const {
    return (peers.of(rank) + static_cast<std::ptrdiff_t>(offset)).as<Bytes16>();
  }
};

}  // namespace tokenyard::device_collectives
