/// The memory of a rank that its peers write during low-latency calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/peer.hpp"
#include "expert_parallel/low_latency/protocol.hpp"

namespace tokenyard::low_latency {

/// Where everything lies in a window. Host and kernels use this one type. Staging first, which is
/// filled with 0xff; then the stamped words, which begin as zeros.
struct WindowLayout {
  uint32_t ranks, tokens_max, topk;
  uint32_t row_pieces;      ///< of a staged row, of whatever format
  uint32_t partial_pieces;  ///< of a staged row of sums

  HOST_DEVICE size_t row(uint32_t parity, uint32_t source, uint32_t token) const {
    return slot(parity, source, token) * row_bytes();
  }
  HOST_DEVICE size_t partial(uint32_t parity, uint32_t source, uint32_t token) const {
    return slots() * row_bytes() + slot(parity, source, token) * partial_bytes();
  }
  HOST_DEVICE size_t staging_bytes() const { return slots() * (row_bytes() + partial_bytes()); }
  HOST_DEVICE size_t ids(uint32_t parity, uint32_t source, uint32_t token) const {
    return staging_bytes() + slot(parity, source, token) * ids_bytes();
  }
  HOST_DEVICE size_t weight(uint32_t parity, uint32_t source, uint32_t token) const {
    return staging_bytes() + slots() * ids_bytes() + slot(parity, source, token) * weights_bytes();
  }
  HOST_DEVICE size_t drained(uint32_t source) const {
    return staging_bytes() + slots() * (ids_bytes() + weights_bytes()) + source * sizeof(Drained);
  }
  HOST_DEVICE size_t pulse(uint32_t source) const {
    return drained(ranks) + source * sizeof(uint32_t);
  }
  HOST_DEVICE size_t bytes() const { return pulse(ranks); }

  /// Of one source and parity, contiguous: what a refill covers.
  HOST_DEVICE size_t row_bytes() const { return size_t{row_pieces} * sizeof(Bytes16); }
  HOST_DEVICE size_t partial_bytes() const { return size_t{partial_pieces} * sizeof(Bytes16); }

 private:
  HOST_DEVICE size_t slots() const { return size_t{2} * ranks * tokens_max; }
  HOST_DEVICE size_t slot(uint32_t parity, uint32_t source, uint32_t token) const {
    return (size_t{parity} * ranks + source) * tokens_max + token;
  }
  HOST_DEVICE size_t ids_bytes() const { return packed_ids_of(topk) * sizeof(Bytes16); }
  HOST_DEVICE size_t weights_bytes() const { return size_t{topk} * sizeof(Stamped); }
};

/// Everybody's windows, as a kernel addresses them. By value: parameters are at hand where a table
/// in memory would have to be read before the first word is sent.
struct Windows {
  std::byte* windows[kRanksMax];
  WindowLayout layout;

  /// Staged pieces of a row from `source` to `rank`.
  DEVICE Peer<Bytes16> row(uint32_t rank, uint32_t parity, uint32_t source, uint32_t token) const {
    return at<Bytes16>(rank, layout.row(parity, source, token));
  }
  DEVICE Peer<Bytes16> partial(uint32_t rank, uint32_t parity, uint32_t source,
                               uint32_t token) const {
    return at<Bytes16>(rank, layout.partial(parity, source, token));
  }
  DEVICE Peer<Bytes16> ids(uint32_t rank, uint32_t parity, uint32_t source, uint32_t token) const {
    return at<Bytes16>(rank, layout.ids(parity, source, token));
  }
  DEVICE Peer<Stamped> weight(uint32_t rank, uint32_t parity, uint32_t source,
                              uint32_t token) const {
    return at<Stamped>(rank, layout.weight(parity, source, token));
  }
  DEVICE Peer<Drained> drained(uint32_t rank, uint32_t source) const {
    return at<Drained>(rank, layout.drained(source));
  }
  DEVICE Peer<uint32_t> pulse(uint32_t rank, uint32_t source) const {
    return at<uint32_t>(rank, layout.pulse(source));
  }

 private:
  template <class T>
  DEVICE Peer<T> at(uint32_t rank, size_t offset) const {
    return Peer<T>(reinterpret_cast<T*>(windows[rank] + offset));
  }
};

}  // namespace tokenyard::low_latency
