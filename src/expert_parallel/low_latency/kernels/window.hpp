/// The memory of a rank that its peers write during low-latency calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/peers.hpp"
#include "expert_parallel/low_latency/kernels/protocol.hpp"

namespace tokenyard::low_latency {

/// Layout of a window, shared by host and kernels; only the host computes the offsets. Staging
/// comes first and is filled with 0xff; the stamped words follow and start as zeros.
class WindowLayout {
 public:
  struct Shape {
    uint32_t ranks, tokens_max, topk;
    uint32_t row_pieces;      ///< per staged row, in any format
    uint32_t partial_pieces;  ///< per staged partial sum
  };

  WindowLayout() = default;
  explicit WindowLayout(const Shape& shape)
      : ranks_(shape.ranks),
        tokens_max_(shape.tokens_max),
        row_bytes_(shape.row_pieces * sizeof(Bytes16)),
        partial_bytes_(shape.partial_pieces * sizeof(Bytes16)),
        ids_bytes_(packed_ids_of(shape.topk) * sizeof(Bytes16)),
        weights_bytes_(shape.topk * sizeof(Stamped)) {
    const size_t slots = size_t{2} * shape.ranks * shape.tokens_max;
    partials_ = slots * row_bytes_;
    ids_ = partials_ + slots * partial_bytes_;
    weights_ = ids_ + slots * ids_bytes_;
    drained_ = weights_ + slots * weights_bytes_;
    heartbeats_ = drained_ + shape.ranks * sizeof(Drained);
    bytes_ = heartbeats_ + shape.ranks * sizeof(uint32_t);
  }

  TOKENYARD_HOST_DEVICE size_t row(uint32_t parity, uint32_t source, uint32_t token) const {
    return size_t{slot(parity, source, token)} * row_bytes_;
  }
  TOKENYARD_HOST_DEVICE size_t partial(uint32_t parity, uint32_t source, uint32_t token) const {
    return partials_ + size_t{slot(parity, source, token)} * partial_bytes_;
  }
  TOKENYARD_HOST_DEVICE size_t ids(uint32_t parity, uint32_t source, uint32_t token) const {
    return ids_ + size_t{slot(parity, source, token)} * ids_bytes_;
  }
  /// `batch`: the source's number for the batch.
  TOKENYARD_HOST_DEVICE size_t weight(uint32_t batch, uint32_t source, uint32_t token) const {
    return weights_ + size_t{slot(batch, source, token)} * weights_bytes_;
  }
  TOKENYARD_HOST_DEVICE size_t drained(uint32_t source) const {
    return drained_ + source * sizeof(Drained);
  }
  TOKENYARD_HOST_DEVICE size_t heartbeat(uint32_t source) const {
    return heartbeats_ + source * sizeof(uint32_t);
  }

  /// Returns the layout for ranks whose partial sums begin `piece` pieces into their places.
  WindowLayout with_partials_from(uint32_t piece) const {
    WindowLayout layout = *this;
    layout.partials_ += piece * sizeof(Bytes16);
    return layout;
  }

  /// A part of a window that one source writes.
  struct Range {
    size_t begin, bytes;
  };
  static constexpr uint32_t kRanges = 10;
  /// Returns all that a source writes of a window.
  std::array<Range, kRanges> written_by(uint32_t source) const {
    std::array<Range, kRanges> ranges{};
    for (const uint32_t half : {0, 1}) {
      ranges[half] = {row(half, source, 0), size_t{tokens_max_} * row_bytes_};
      ranges[2 + half] = {partial(half, source, 0), size_t{tokens_max_} * partial_bytes_};
      ranges[4 + half] = {ids(half, source, 0), size_t{tokens_max_} * ids_bytes_};
      ranges[6 + half] = {weight(half, source, 0), size_t{tokens_max_} * weights_bytes_};
    }
    ranges[8] = {drained(source), sizeof(Drained)};
    ranges[9] = {heartbeat(source), sizeof(uint32_t)};
    return ranges;
  }

  size_t staging_bytes() const { return ids_; }
  size_t bytes() const { return bytes_; }
  /// Bytes per token; the tokens of one source and parity are contiguous, which is what a refill
  /// covers.
  size_t row_bytes() const { return row_bytes_; }
  size_t partial_bytes() const { return partial_bytes_; }

 private:
  /// Fits: ranks <= experts, and tokens_max * experts < 2^31.
  TOKENYARD_HOST_DEVICE uint32_t slot(uint32_t half, uint32_t source, uint32_t token) const {
    return (half * ranks_ + source) * tokens_max_ + token;
  }

  uint32_t ranks_, tokens_max_;
  uint32_t row_bytes_, partial_bytes_, ids_bytes_, weights_bytes_;
  size_t partials_, ids_, weights_, drained_, heartbeats_, bytes_;  ///< offsets; rows are first
};

/// The windows of all ranks, as a kernel addresses them.
struct Windows {
  Peers peers;
  WindowLayout layout;

  /// Returns the address in another window that corresponds to one in this rank's window.
  TOKENYARD_DEVICE Peer<Bytes16> same_place(Peer<std::byte> window, Peer<Bytes16> place) const {
    return at<Bytes16>(window, place.as<std::byte>().address() - peers.mine());
  }
  TOKENYARD_DEVICE Peer<Bytes16> row_here(uint32_t parity, uint32_t source, uint32_t token) const {
    return at<Bytes16>(here(), layout.row(parity, source, token));
  }
  TOKENYARD_DEVICE Peer<Bytes16> partial(uint32_t rank, uint32_t parity, uint32_t source,
                                         uint32_t token) const {
    return at<Bytes16>(peers.of(rank), layout.partial(parity, source, token));
  }
  TOKENYARD_DEVICE Peer<Bytes16> partial_here(uint32_t parity, uint32_t source,
                                              uint32_t token) const {
    return at<Bytes16>(here(), layout.partial(parity, source, token));
  }
  TOKENYARD_DEVICE Peer<Bytes16> ids(uint32_t rank, uint32_t parity, uint32_t source) const {
    return at<Bytes16>(peers.of(rank), layout.ids(parity, source, 0));
  }
  /// Ids of all sources, in order.
  TOKENYARD_DEVICE Peer<Bytes16> ids_here(uint32_t parity) const {
    return at<Bytes16>(here(), layout.ids(parity, 0, 0));
  }
  TOKENYARD_DEVICE Peer<Stamped> weights(uint32_t rank, uint32_t batch, uint32_t source) const {
    return at<Stamped>(peers.of(rank), layout.weight(batch, source, 0));
  }
  TOKENYARD_DEVICE Peer<Stamped> weights_here(uint32_t batch, uint32_t source,
                                              uint32_t token) const {
    return at<Stamped>(here(), layout.weight(batch, source, token));
  }
  TOKENYARD_DEVICE Peer<Drained> drained(uint32_t rank, uint32_t source) const {
    return at<Drained>(peers.of(rank), layout.drained(source));
  }
  TOKENYARD_DEVICE Peer<Drained> drained_here(uint32_t source) const {
    return at<Drained>(here(), layout.drained(source));
  }
  TOKENYARD_DEVICE Peer<uint32_t> heartbeat(uint32_t rank, uint32_t source) const {
    return at<uint32_t>(peers.of(rank), layout.heartbeat(source));
  }

 private:
  TOKENYARD_DEVICE Peer<std::byte> here() const { return Peer<std::byte>(peers.mine()); }
  template <class T>
  TOKENYARD_DEVICE static Peer<T> at(Peer<std::byte> window, size_t offset) {
    return (window + static_cast<std::ptrdiff_t>(offset)).template as<T>();
  }
};

}  // namespace tokenyard::low_latency
