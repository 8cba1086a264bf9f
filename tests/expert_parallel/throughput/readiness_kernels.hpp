/// A kernel that watches a dispatch: it reads the rows of a source, or of an expert, as soon as
/// they have arrived, as a grouped GEMM would.
#pragma once

#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/readiness_kernel.hpp"

namespace tokenyard::test {

enum class WatchPhase : uint32_t { source, expert };

struct WatchParams {
  const uint32_t* sources_ready;  ///< [ranks]
  const uint32_t* experts_ready;  ///< [local experts]
  const uint32_t* x;              ///< [rows, row_words]
  const int32_t* topk_idx;        ///< [rows, topk]
  const uint32_t* first_rows;     ///< [ranks + 1] first row of each source
  uint32_t ranks, local_experts, row_words, topk;
  uint32_t* of_sources;  ///< [ranks] sums of the words of each source's rows, modulo 2^32; start as
                         ///< zeros
  uint32_t* of_experts;  ///< [local experts] the same over rows of each expert
  WaitContext wait_context;
};

/// Adds up the words of the rows [first, end) for which `counts(row)` holds. Called by one block.
template <class Counts>
TOKENYARD_DEVICE void add_rows(const WatchParams& params, uint32_t first, uint32_t end,
                               Counts counts, uint32_t* to) {
  uint32_t sum = 0;
  for (uint32_t row = first + warp::index(); row < end; row += block::threads() / kWarpLanes) {
    if (!counts(row)) continue;
    for (uint32_t word = warp::lane(); word < params.row_words; word += kWarpLanes)
      sum += params.x[size_t{row} * params.row_words + word];
  }
  add<Order::relaxed, Scope::gpu>(to, sum);
}

/// Waits for a ready word; returns false if the call has failed. Called by the whole block, which
/// synchronizes. Acquire: orders the rows that the word announces before our loads.
TOKENYARD_DEVICE bool await_ready(const Deadline& deadline, WatchPhase phase, uint32_t index,
                                  const uint32_t* word) {
  Awaited what{.phase = static_cast<uint32_t>(phase), .rank = index, .expected = 1};
  const bool ready = wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::gpu>(word);
    return what.seen == 1;
  });
  return !block::any(!ready);
}

/// One block per source, then one block per expert.
TOKENYARD_DEVICE void watch(const WatchParams& params) {
  const Deadline deadline = params.wait_context.start();
  const uint32_t rows = params.first_rows[params.ranks];
  if (block::index() < params.ranks) {
    const uint32_t source = block::index();
    if (!await_ready(deadline, WatchPhase::source, source, params.sources_ready + source)) return;
    add_rows(
        params, params.first_rows[source], params.first_rows[source + 1],
        [](uint32_t) { return true; }, params.of_sources + source);
    return;
  }
  const uint32_t expert = block::index() - params.ranks;
  if (!await_ready(deadline, WatchPhase::expert, expert, params.experts_ready + expert)) return;
  // Ids of rows that have not arrived are stale, so only rows of sources that have arrived are
  // examined.
  add_rows(
      params, 0, rows,
      [&](uint32_t row) {
        uint32_t source = 0;
        while (row >= params.first_rows[source + 1]) ++source;
        // All lanes of a warp load the word and may see different values; a lane that sees 1 may
        // count.
        if (load<Order::acquire, Scope::gpu>(params.sources_ready + source) == 0) return false;
        for (uint32_t choice = 0; choice < params.topk; ++choice)
          if (params.topk_idx[size_t{row} * params.topk + choice] == static_cast<int32_t>(expert))
            return true;
        return false;
      },
      params.of_experts + expert);
}

TOKENYARD_DEFINE_KERNEL(watch_kernel, watch, WatchParams, NoShared, 64)

}  // namespace tokenyard::test
