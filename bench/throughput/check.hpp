/// Checks of dispatch and combine, made before they are timed.
#pragma once

#include <fmt/core.h>

#include <cstring>

#include "bench/throughput/tensors.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::bench {

inline float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Checks, for some input sets, that every row is in its place, and that a combine of the received
/// rows returns each token times the number of its ranks.
inline void check(World& world, ExpertParallel& exchange, Tensors& tensors, const Shape& shape,
                  double skew, uint32_t sets, Stream stream) {
  for (uint32_t set = 0; set < sets; ++set) {
    Received received = exchange.dispatch(tensors.input(set), stream);
    const auto rows =
        tensors.download<uint16_t>(received.x.data, size_t{received.rows} * shape.hidden, stream);
    const auto tokens =
        tensors.download<int32_t>(received.source_token.data, received.rows, stream);
    size_t row = 0;
    for (uint32_t source = 0; source < shape.ranks; ++source) {
      const Workload sent = make_workload(shape, source, set, skew);
      const auto goes = destinations(shape, sent);
      for (uint32_t token = 0; token < shape.tokens; ++token) {
        if (!goes[token * shape.ranks + world.rank()]) continue;
        if (row >= received.rows || tokens[row] != static_cast<int32_t>(token) ||
            std::memcmp(&rows[row * shape.hidden], &sent.x[size_t{token} * shape.hidden],
                        size_t{shape.hidden} * 2))
          throw InternalError(fmt::format("set {}: row {} of rank {} is not token {} of rank {}",
                                          set, row, world.rank(), token, source));
        ++row;
      }
    }
    if (row != received.rows)
      throw InternalError(
          fmt::format("rank {} received {} rows, not {}", world.rank(), received.rows, row));

    exchange.combine({.y = received.x}, *received.route, {.x = tensors.out}, stream);
    exchange.wait(stream);
    const auto out =
        tensors.download<uint16_t>(tensors.out.data, size_t{shape.tokens} * shape.hidden, stream);
    const Workload mine = make_workload(shape, world.rank(), set, skew);
    const auto goes = destinations(shape, mine);
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      uint32_t ranks = 0;
      for (uint32_t rank = 0; rank < shape.ranks; ++rank) ranks += goes[token * shape.ranks + rank];
      for (uint32_t i = 0; i < shape.hidden; ++i) {
        const size_t at = size_t{token} * shape.hidden + i;
        float sum = 0;
        for (uint32_t rank = 0; rank < ranks; ++rank) sum += from_bf16(mine.x[at]);
        if (out[at] != to_bf16(sum))
          throw InternalError(
              fmt::format("set {}: element {} of token {} on rank {}: {:#06x}, not {:#06x}", set, i,
                          token, world.rank(), out[at], to_bf16(sum)));
      }
    }
  }
}

/// Checks that rows grouped by expert while they arrive give the same sums as rows grouped after.
inline void check_by_expert(World& world, ExpertParallel& exchange, Tensors& tensors,
                            const Shape& shape, Stream stream) {
  const Received received = exchange.dispatch(tensors.input(0), stream);
  const ExpertRows after = exchange.group_by_expert(received, {.alignment = 128}, stream);
  const RowsByExpert at_once =
      exchange.dispatch_by_expert(tensors.input(0), {.alignment = 128}, stream);
  const auto home = [&](const ExpertRows& rows) {
    exchange.combine({.y = rows.x, .by_expert = &rows}, *rows.route, {.x = tensors.out}, stream);
    exchange.wait(stream);
    return tensors.download<uint16_t>(tensors.out.data, size_t{shape.tokens} * shape.hidden,
                                      stream);
  };
  if (home(after) != home(at_once.rows))
    throw InternalError(fmt::format(
        "rank {}: rows grouped on arrival differ from those grouped after", world.rank()));
}

}  // namespace tokenyard::bench
