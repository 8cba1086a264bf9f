/// What the phases of an expansion share: the call as a thread sees it.
#pragma once

#include <algorithm>

#include "device/device.hpp"
#include "expert_parallel/expert_major/expand_rows.hpp"

namespace tokenyard::expert_major {

struct Expand {
  const ExpandParams& params;
  ExpandShared& shared;
  const ExpandTail& tail;
  const Deadline& deadline;

  template <class T>
  DEVICE T* at(size_t offset) const {
    return reinterpret_cast<T*>(params.to + offset);
  }
  /// The rows of this block, or of one of its warps.
  struct Range {
    uint32_t begin, end;
  };
  DEVICE Range of_block() const {
    const uint32_t each = (params.rows + grid::blocks() - 1) / grid::blocks();
    const uint32_t begin = std::min(block::index() * each, params.rows);
    return {begin, std::min(begin + each, params.rows)};
  }
  DEVICE Range of_warp() const {
    const Range range = of_block();
    const uint32_t each = (range.end - range.begin + tail.warps - 1) / tail.warps;
    const uint32_t begin = std::min(range.begin + warp::index() * each, range.end);
    return {begin, std::min(begin + each, range.end)};
  }
};

/// `body(row)` for every crew-th row of padding: those between an expert's last row and the next
/// expert's first.
template <class Body>
DEVICE void for_each_padding(const Expand& call, uint32_t crew, uint32_t crews, Body body) {
  for (uint32_t expert = 0; expert < call.tail.local_experts; ++expert) {
    const uint32_t begin = call.tail.offsets()[expert] + call.params.tokens_per_expert[expert];
    const uint32_t first = begin + (crew + crews - begin % crews) % crews;
    for (uint32_t row = first; row < call.tail.offsets()[expert + 1]; row += crews) body(row);
  }
}

}  // namespace tokenyard::expert_major
