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

Statistics empty_statistics(const Setup& setup) {
  return {.totals = nullptr,
          .shown = nullptr,
          .local_experts = setup.local_experts(),
          .ranks = setup.world.size()};
}

}  // namespace

Observation::Observation(const Setup& setup, uint32_t blocks_max)
    : accelerator_(setup.accelerator),
      blocks_max_(blocks_max),
      statistics_(empty_statistics(setup)),
      totals_(accelerator_, statistics_.count() * sizeof(uint64_t), DeviceMemory::Kind::device),
      shown_(accelerator_, statistics_.count() * sizeof(uint64_t), DeviceMemory::Kind::shared) {
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
