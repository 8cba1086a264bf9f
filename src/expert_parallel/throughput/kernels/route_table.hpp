/// What a dispatch leaves behind for the calls that use its route: where each token went, and how
/// many rows that made. It lives on the device, so that calls which no host has waited for, and
/// graphs that replay them, find it there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::throughput {

/// In memory of the rank whose tokens they are; written by its dispatch, read by later kernels.
struct RouteTable {
  std::byte* base;
  uint32_t ranks, local_experts;

  /// Of the dispatch that made the route: names it among the ranks.
  HOST_DEVICE uint32_t& epoch() const { return words()[0]; }
  /// [ranks] rows that each rank received in all.
  HOST_DEVICE uint32_t* rows_on() const { return words() + kHeaderWords; }
  /// [ranks] rows that this rank received from each.
  HOST_DEVICE uint32_t* rows_from() const { return rows_on() + ranks; }
  /// [local experts] tokens of each of this rank's experts.
  HOST_DEVICE uint32_t* tokens_per_expert() const { return rows_from() + ranks; }
  /// [tokens, ranks] the token's row on that rank, or -1.
  HOST_DEVICE int32_t* rows() const { return reinterpret_cast<int32_t*>(base + rows_at()); }

  HOST_DEVICE size_t bytes(uint32_t tokens) const {
    return rows_at() + size_t{tokens} * ranks * sizeof(int32_t);
  }

 private:
  static constexpr uint32_t kHeaderWords = 4;
  HOST_DEVICE uint32_t* words() const { return reinterpret_cast<uint32_t*>(base); }
  HOST_DEVICE size_t rows_at() const {
    return (kHeaderWords + size_t{2} * ranks + local_experts + 3) / 4 * 16;
  }
};

}  // namespace tokenyard::throughput
