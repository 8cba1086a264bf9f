/// A model of the dispatch between hosts of DeepEP V1: its protocol as published, on the constants
/// of our own model (costs.hpp). It knows when rows move, not what is in them.
///
///     sender warps -> send ring of a channel and host -> put and tail of a chunk -> receive ring
///     -> 8 forwarder warps per channel, one per rank of the host -> ring of that rank
///     -> 8 receiver warps per channel, one per rank of the host -> result
///
/// Each channel has two multiprocessors: forwarders on one, senders and receivers on the other. A
/// channel's tokens are a fixed share. Each forwarder looks at all slots that come, and copies
/// those for its rank, one at a time; it waits for the end of each copy. So do receivers.
#pragma once

#include <cstdint>

#include "bench/across_hosts_model/costs.hpp"
#include "bench/across_hosts_model/routing.hpp"

namespace tokenyard::bench {

struct DeepEpV1 {
  uint32_t sms = 24;  ///< two per channel
  // Rows, per channel: of a put and of a ring between hosts, of a batch and of a ring inside a
  // host.
  uint32_t put_rows = 0, ring_rows = 128, batch_rows = 0, host_ring_rows = 0;
  double nvlink_gb_s = 160;

  /// Returns the chunks and rings that its `get_dispatch_config` publishes.
  static DeepEpV1 published(uint32_t ranks);
};

struct DeepEpV1Time {
  double us = 0;              ///< mean over ranks, from the kernels' start
  double last_us = 0;         ///< of the last rank
  double floor_us = 0;        ///< of the busiest rank's bytes on its link
  double counted_gb_s = 0;    ///< rows as it counts them: those for a token's own host too
  double over_link_gb_s = 0;  ///< those that cross a link
};

/// `row_bytes`: payload of a row, scales included.
DeepEpV1Time model_deep_ep_v1(const DeepEpV1& config, const RoutedShape& shape, uint32_t row_bytes,
                              const Costs& costs);

}  // namespace tokenyard::bench
