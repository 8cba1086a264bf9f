/// A plain reference of what combine between hosts adds differently: each other host's results are
/// summed there and rounded.
#pragma once

#include <algorithm>

#include "expert_parallel/reference.hpp"

namespace tokenyard::test {

/// Returns the result of combine on a rank, given expert_rows of all ranks and the hosts of all
/// ranks: the own host's results one by one and each other host's rounded sum, in host order, in
/// fp32, rounded once. `biases`: [tokens, hidden] each, which come first.
inline std::vector<uint16_t> expected_sums_between(
    const Shape& shape, const std::vector<uint32_t>& host_of, const Tokens& tokens, uint32_t rank,
    uint32_t call = 0, const std::vector<std::vector<uint16_t>>& biases = {}) {
  uint32_t hosts = 0;
  for (const uint32_t host : host_of) hosts = std::max(hosts, host + 1);
  std::vector<uint16_t> out;
  for (uint32_t token = 0; token < tokens.count; ++token)
    for (uint32_t column = 0; column < shape.hidden; ++column) {
      float sum = 0;
      for (const std::vector<uint16_t>& bias : biases)
        sum += from_bf16(bias[size_t{token} * shape.hidden + column]);
      for (uint32_t host = 0; host < hosts; ++host) {
        float partial = 0;
        bool any = false;
        for (uint32_t there = 0; there < shape.ranks; ++there) {
          if (host_of[there] != host || !goes_to(shape, tokens, token, there)) continue;
          const float value = from_bf16(expert_value(there, {rank, token}, column, call));
          if (host == host_of[rank])
            sum += value;
          else
            partial += value;
          any = true;
        }
        if (any && host != host_of[rank]) sum += from_bf16(to_bf16(partial));
      }
      out.push_back(to_bf16(sum));
    }
  return out;
}

}  // namespace tokenyard::test
