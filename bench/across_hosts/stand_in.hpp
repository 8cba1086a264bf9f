/// The routing of a world of which one rank is real, rank 0, and the rows that stand for those of
/// the others: computed anew wherever they are needed, so that every one can be checked.
#pragma once

#include <cstdint>
#include <vector>

#include "expert_parallel/internode/kernels/across_hosts.hpp"

namespace tokenyard::bench {

/// The world around one real rank. The ranks of a host are neighbours.
struct Scene {
  uint32_t hosts = 8, locals = 8, tokens = 4096, hidden = 7168, topk = 8, experts = 256;
  uint32_t seed = 1;

  uint32_t ranks() const { return hosts * locals; }
  uint32_t rank_of(int64_t expert) const {
    return static_cast<uint32_t>(expert) / (experts / ranks());
  }
  /// Returns the rank that exchanges slots with rank 0 on a host.
  uint32_t rail_peer(uint32_t host) const { return host * locals; }
};

/// Where the tokens of a rank go.
struct SourceRoute {
  std::vector<int64_t> ids;       ///< [tokens][topk]
  std::vector<uint32_t> rows;     ///< [ranks] rows for each rank
  std::vector<uint32_t> choices;  ///< [experts] tokens that name each
  std::vector<int32_t> number;    ///< [tokens][ranks] among the rows for that rank, or -1
  std::vector<std::vector<uint32_t>> tokens_to;  ///< [hosts] tokens that go to each, in order
};

class StandIn {
 public:
  explicit StandIn(const Scene& scene);

  const Scene& scene() const { return scene_; }
  const SourceRoute& of(uint32_t rank) const { return routes_[rank]; }
  /// Returns the first row of a source on a rank of host 0, and the rows of all sources there.
  uint32_t first_row(uint32_t place, uint32_t source) const {
    return first_row_[size_t{place} * (scene_.ranks() + 1) + source];
  }
  uint32_t rows_on(uint32_t place) const { return first_row(place, scene_.ranks()); }

  /// Returns a word of a token's row, and of its scales behind the row.
  uint32_t word(uint32_t source, uint32_t token, uint32_t index) const {
    const uint32_t base = (source * 0x9e3779b1u) ^ (token * 0x85ebca77u) ^ scene_.seed;
    return (base ^ base >> 15) + index * 0xc2b2ae3du;
  }
  float weight(uint32_t source, uint32_t token, uint32_t choice) const {
    return 0.25f + static_cast<float>(word(source, token, choice) % 64) / 64;
  }
  /// Writes a row and its scales.
  void write_row(uint32_t source, uint32_t token, std::byte* to, uint32_t words) const;
  /// Writes the slot that a source sends to rank 0, or that rank 0 sends.
  void write_slot(uint32_t source, uint32_t token, const internode::SlotLayout& slot,
                  std::byte* to) const;

  // A combine's rows: small whole numbers, so that sums are exact in bfloat16.
  /// Element of the result that a rank of host 0 has for a token.
  static uint32_t result(uint32_t place, uint32_t source, uint32_t token, uint32_t element) {
    return 1 + (place + 3 * source + 7 * token) % 5 + element % 3;
  }
  /// Element of the partial sum of another host for a token of rank 0.
  static uint32_t partial(uint32_t host, uint32_t token, uint32_t element) {
    return 1 + (host + token) % 6 + element % 3;
  }
  /// Returns whether a rank of host 0 has a row of a token.
  bool goes(uint32_t source, uint32_t token, uint32_t place) const {
    return number(source, token, place) >= 0;
  }
  int32_t number(uint32_t source, uint32_t token, uint32_t rank) const {
    return routes_[source].number[size_t{token} * scene_.ranks() + rank];
  }

 private:
  const Scene scene_;
  std::vector<SourceRoute> routes_;  ///< [ranks]
  std::vector<uint32_t> first_row_;  ///< [locals][ranks + 1]
};

/// Returns a whole number as bfloat16.
uint16_t whole_bf16(uint32_t value);

}  // namespace tokenyard::bench
