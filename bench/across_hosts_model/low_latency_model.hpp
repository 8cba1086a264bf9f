/// The model of low latency between hosts: a dispatch and its combine, whose weights travel with
/// the dispatch. Each is three kernels of a stream or more: what stores to near ranks and mirrors,
/// what packs, puts and unpacks messages, and what receives.
///
/// Rows are short in memory: a piece of sixteen bytes stands for several. Charged are their stores,
/// loads of staged rows and messages; the first loads of a caller's rows are not.
#pragma once

#include "bench/across_hosts_model/routing.hpp"

namespace tokenyard::bench {

struct LowLatencyShape {
  RoutedShape routed;
  uint32_t hidden = 7168, sms = 0;
};

struct LowLatencyTime {
  double us = 0;
  double wire_us = 0;  ///< of the busiest rank's bytes on its link
};

struct LowLatencyTimes {
  LowLatencyTime dispatch, combine;
  uint32_t sms = 0;
};

/// Runs a dispatch in FP8 and a combine in BF16. Throws InternalError for a wrong count or sum.
LowLatencyTimes model_low_latency(const LowLatencyShape& shape);

}  // namespace tokenyard::bench
