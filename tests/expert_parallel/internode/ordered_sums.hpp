/// Combines between hosts in the caller's order of ranks: a plain reference, and a comparison.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "expert_parallel/difference.hpp"
#include "expert_parallel/rank_memory.hpp"
#include "expert_parallel/reference.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::test {

/// Returns a result of the rank `there` for a token of `rank`: of sizes that differ so much that
/// other orders of fp32 additions round differently.
inline float result_of(uint32_t there, uint32_t rank, uint32_t token, uint32_t column) {
  const uint32_t mixed = there * 31 + rank * 17 + token * 7 + column * 3;
  return (static_cast<float>(mixed % 23) - 10.5f) * (there % 2 == 0 ? 0.37f : 3e7f);
}

/// Returns a bias of a rank's token.
inline float bias_of(uint32_t number, uint32_t rank, uint32_t token, uint32_t column) {
  return result_of(40 + number, rank, token, column);
}

/// Returns the sums of a rank's tokens if ranks are added in `order`, [tokens, ranks], behind
/// `biases`, and another host's sum where the first of its ranks is named.
inline std::vector<float> sums_in_order(const Shape& shape, const std::vector<uint32_t>& host_of,
                                        const Tokens& mine, uint32_t rank,
                                        const std::vector<uint32_t>& order, uint32_t biases) {
  std::vector<float> sums;
  for (uint32_t token = 0; token < mine.count; ++token)
    for (uint32_t column = 0; column < shape.hidden; ++column) {
      float sum = 0;
      for (uint32_t bias = 0; bias < biases; ++bias) sum += bias_of(bias, rank, token, column);
      std::set<uint32_t> hosts, ranks;
      for (uint32_t turn = 0; turn < shape.ranks; ++turn) {
        const uint32_t named = order[size_t{token} * shape.ranks + turn];
        if (named >= shape.ranks || !ranks.insert(named).second) continue;
        if (host_of[named] == host_of[rank]) {
          if (goes_to(shape, mine, token, named)) sum += result_of(named, rank, token, column);
          continue;
        }
        if (!hosts.insert(host_of[named]).second) continue;
        float partial = 0;
        bool any = false;
        for (uint32_t there = 0; there < shape.ranks; ++there) {
          if (host_of[there] != host_of[named] || !goes_to(shape, mine, token, there)) continue;
          partial += result_of(there, rank, token, column);
          any = true;
        }
        if (any) sum += partial;
      }
      sums.push_back(sum);
    }
  return sums;
}

/// Combines float32 rows that only this call has. `expected`: the rows that this rank received.
inline std::string difference_after_ordered_combine(ExpertParallel& exchange,
                                                    const Received& received, const Shape& shape,
                                                    const std::vector<uint32_t>& host_of,
                                                    const Tokens& mine, const Expected& expected,
                                                    const std::vector<uint32_t>& order,
                                                    uint32_t biases) {
  World& world = exchange.world();
  Accelerator& accelerator = accelerator_of(world);
  const uint32_t rank = world.rank();
  std::vector<float> y, bias[2];
  for (const Row row : expected.rows)
    for (uint32_t column = 0; column < shape.hidden; ++column)
      y.push_back(result_of(rank, row.source, row.token, column));
  for (uint32_t number = 0; number < biases; ++number)
    for (uint32_t token = 0; token < mine.count; ++token)
      for (uint32_t column = 0; column < shape.hidden; ++column)
        bias[number].push_back(bias_of(number, rank, token, column));
  const DeviceArray<float> y_there(accelerator, y), first(accelerator, bias[0]),
      second(accelerator, bias[1]);
  const DeviceArray<uint32_t> order_there(accelerator, order);
  DeviceArray<float> out(accelerator, size_t{mine.count} * shape.hidden);
  out.poison();
  CombineInput input{.y = y_there.view({received.rows, shape.hidden}),
                     .rank_order = order_there.view({mine.count, shape.ranks})};
  if (biases > 0) input.biases[0] = first.view({mine.count, shape.hidden});
  if (biases > 1) input.biases[1] = second.view({mine.count, shape.hidden});
  exchange.combine(input, *received.route, {.x = out.view({mine.count, shape.hidden})});
  exchange.wait();
  return difference("out", out.read(), sums_in_order(shape, host_of, mine, rank, order, biases));
}

}  // namespace tokenyard::test
