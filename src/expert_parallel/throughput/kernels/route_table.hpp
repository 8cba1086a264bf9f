/// A route: where a dispatch sent each token, and the row counts, for calls that reuse it. It is on
/// the device so that calls for which no host waited, and graphs that replay them, find it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::throughput {

/// In memory of the rank that owns the tokens. Its dispatch writes it; later kernels read it.
struct RouteTable {
  std::byte* base;
  uint32_t ranks, local_experts;

  /// Epoch of the dispatch that made the route; identifies the route among ranks.
  TOKENYARD_HOST_DEVICE uint32_t& epoch() const { return words()[0]; }
  /// [ranks]: rows that each rank received in all.
  TOKENYARD_HOST_DEVICE uint32_t* rows_on() const { return words() + kHeaderWords; }
  /// [ranks]: rows that this rank received from each rank.
  TOKENYARD_HOST_DEVICE uint32_t* rows_from() const { return rows_on() + ranks; }
  /// [local experts]: tokens of each expert of this rank.
  TOKENYARD_HOST_DEVICE uint32_t* tokens_per_expert() const { return rows_from() + ranks; }
  /// [tokens, ranks]: row of the token on that rank, or -1.
  TOKENYARD_HOST_DEVICE int32_t* rows() const {
    return reinterpret_cast<int32_t*>(base + rows_at());
  }

  TOKENYARD_HOST_DEVICE size_t bytes(uint32_t tokens) const {
    return rows_at() + size_t{tokens} * ranks * sizeof(int32_t);
  }

 private:
  static constexpr uint32_t kHeaderWords = 4;
  TOKENYARD_HOST_DEVICE uint32_t* words() const { return reinterpret_cast<uint32_t*>(base); }
  TOKENYARD_HOST_DEVICE size_t rows_at() const {
    return (kHeaderWords + size_t{2} * ranks + local_experts + 3) / 4 * 16;
  }
};

}  // namespace tokenyard::throughput
