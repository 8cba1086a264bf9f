#include "expert_parallel/throughput/host/observation.hpp"

#include <algorithm>
#include <array>
#include <atomic>

namespace tokenyard::throughput {

namespace {

constexpr std::array<const char*, kMoments> kMomentNames = {
    "begun", "counted", "greeted", "known",    "routed", "moved",
    "told",  "placed",  "spread",  "finished", "ended"};

/// Reads a word that a kernel may be writing.
uint64_t seen(uint64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_relaxed);
}

/// Adds to a total whose only writer is this thread.
void add(std::atomic<uint64_t>& total, uint64_t value) {
  total.store(total.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

Statistics empty_statistics(const Setup& setup) {
  return {.totals = nullptr,
          .shown = nullptr,
          .local_experts = setup.local_experts(),
          .ranks = setup.world.size()};
}

}  // namespace

void RowTotals::add_call(std::span<const uint32_t> rows, uint64_t bytes_per_row) {
  add(calls_, 1);
  if (rows.empty()) add(uncounted_, 1);
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    add(rows_[rank], rows[rank]);
    add(bytes_[rank], rows[rank] * bytes_per_row);
  }
}

Observation::Observation(const Setup& setup, uint32_t blocks_max)
    : accelerator_(setup.accelerator),
      rank_(setup.world.rank()),
      blocks_max_(blocks_max),
      statistics_(empty_statistics(setup)),
      totals_(accelerator_, statistics_.count() * sizeof(uint64_t), DeviceMemory::Kind::device),
      shown_(accelerator_, statistics_.count() * sizeof(uint64_t), DeviceMemory::Kind::shared),
      received_(setup.world.size()),
      returned_(setup.world.size()) {
  statistics_.totals = totals_.as<uint64_t>();
  statistics_.shown = shown_.as<uint64_t>();
}

ExpertParallel::Load Observation::load() const {
  ExpertParallel::Load load;
  for (uint32_t expert = 0; expert < statistics_.local_experts; ++expert)
    load.tokens_per_expert.push_back(seen(statistics_.shown[statistics_.tokens_of(expert)]));
  for (uint32_t rank = 0; rank < statistics_.ranks; ++rank)
    load.waited_us.push_back(
        static_cast<double>(seen(statistics_.shown[statistics_.waited_for(rank)])) * 1e-3);
  return load;
}

void Observation::count_dispatch(const Route::State& route, uint64_t bytes_per_row) {
  received_.add_call(route.rows_from, bytes_per_row);
  add(dispatched_tokens_, route.tokens);
}

/// The peers pull what their dispatches brought here.
void Observation::count_combine(const Route::State& route, uint64_t bytes_per_row) {
  returned_.add_call(route.rows_from, bytes_per_row);
}

ExpertParallel::Metrics Observation::metrics() const {
  ExpertParallel::Load on_device = load();
  ExpertParallel::Metrics metrics{
      .dispatch_calls = received_.calls(),
      .combine_calls = returned_.calls(),
      .uncounted_calls = received_.uncounted() + returned_.uncounted(),
      .dispatched_tokens = dispatched_tokens_.load(std::memory_order_relaxed),
      .unplaced_choices = 0,
      .received_rows_by_peer = received_.rows(),
      .received_bytes_by_peer = received_.bytes(),
      .returned_rows_by_peer = returned_.rows(),
      .returned_bytes_by_peer = returned_.bytes(),
      .received_choices_by_expert = std::move(on_device.tokens_per_expert),
      .wait_seconds_by_peer = {},
      .slowest_rank = std::nullopt};
  double longest = 0;
  for (uint32_t rank = 0; rank < statistics_.ranks; ++rank) {
    metrics.wait_seconds_by_peer.push_back(on_device.waited_us[rank] * 1e-6);
    if (rank == rank_ || metrics.wait_seconds_by_peer[rank] <= longest) continue;
    longest = metrics.wait_seconds_by_peer[rank];
    metrics.slowest_rank = rank;
  }
  return metrics;
}

void Observation::trace_calls(bool on) {
  const size_t words = size_t{blocks_max_} * kMoments;
  if (on && !moments_)
    moments_.emplace(accelerator_, words * sizeof(uint64_t), DeviceMemory::Kind::shared);
  for (size_t i = 0; on && i < words; ++i)
    std::atomic_ref(moments_->as<uint64_t>()[i]).store(0, std::memory_order_relaxed);
  traces_ = on;
}

std::vector<ExpertParallel::Moment> Observation::last_trace() const {
  std::vector<ExpertParallel::Moment> trace;
  for (uint32_t block = 0; moments_ && block < blocks_max_; ++block) {
    const size_t first = trace.size();
    for (uint32_t moment = 0; moment < kMoments; ++moment)
      if (const uint64_t ns = seen(moments_->as<uint64_t>()[size_t{block} * kMoments + moment]);
          ns != 0)
        trace.push_back({block, kMomentNames[moment], ns});
    std::stable_sort(trace.begin() + static_cast<std::ptrdiff_t>(first), trace.end(),
                     [](const auto& left, const auto& right) { return left.ns < right.ns; });
  }
  return trace;
}

}  // namespace tokenyard::throughput
