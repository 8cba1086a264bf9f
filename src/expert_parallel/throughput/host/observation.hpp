/// Observations of an object that may be read while calls run: sums over calls, and the moments of
/// traced calls.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "device/device_memory.hpp"
#include "expert_parallel/throughput/host/route_state.hpp"
#include "expert_parallel/throughput/host/setup.hpp"
#include "expert_parallel/throughput/kernels/statistics.hpp"

namespace tokenyard::throughput {

/// Rows of one kind of call by the rank that they came from or went to. One thread writes, any
/// reads.
class RowTotals {
 public:
  explicit RowTotals(uint32_t ranks) : rows_(ranks), bytes_(ranks) {}

  /// `rows`: [ranks], or empty if no host has read the counts.
  void add_call(std::span<const uint32_t> rows, uint64_t bytes_per_row);
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  uint64_t uncounted() const { return uncounted_.load(std::memory_order_relaxed); }
  std::vector<uint64_t> rows() const { return {rows_.begin(), rows_.end()}; }
  std::vector<uint64_t> bytes() const { return {bytes_.begin(), bytes_.end()}; }

 private:
  std::atomic<uint64_t> calls_ = 0, uncounted_ = 0;
  std::vector<std::atomic<uint64_t>> rows_, bytes_;  ///< [ranks]
};

class Observation {
 public:
  /// `blocks_max`: most blocks of any rank's calls.
  Observation(const Setup& setup, uint32_t blocks_max);

  const Statistics& statistics() const { return statistics_; }
  /// Returns [blocks_max, kMoments] for calls to record their moments, or null if calls are not
  /// traced.
  uint64_t* moments() const { return traces_ ? moments_->as<uint64_t>() : nullptr; }

  /// Counts a call that was launched.
  void count_dispatch(const Route::State& route, uint64_t bytes_per_row);
  void count_combine(const Route::State& route, uint64_t bytes_per_row);

  ExpertParallel::Load load() const;
  ExpertParallel::Metrics metrics() const;
  void trace_calls(bool on);
  std::vector<ExpertParallel::Moment> last_trace() const;

 private:
  Accelerator& accelerator_;
  const uint32_t rank_;
  const uint32_t blocks_max_;
  Statistics statistics_;
  const DeviceMemory totals_, shown_;      ///< memory of statistics_
  std::optional<DeviceMemory> moments_{};  ///< allocated with the first traced call
  bool traces_ = false;
  RowTotals received_, returned_;
  std::atomic<uint64_t> dispatched_tokens_ = 0;
};

}  // namespace tokenyard::throughput
