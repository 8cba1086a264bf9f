/// What people may ask an exchange while it works.
#include <algorithm>
#include <array>
#include <atomic>

#include "expert_parallel/throughput/host/route_state.hpp"

namespace tokenyard {

using throughput::kMoments;

namespace {

constexpr std::array<const char*, kMoments> kMomentNames = {
    "begun", "counted", "greeted", "known",    "routed", "moved",
    "told",  "placed",  "spread",  "finished", "ended"};

/// A word that a kernel may be writing now.
uint64_t seen(uint64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_relaxed);
}

}  // namespace

ExpertParallel::Load ExpertParallel::Parts::load() const {
  ExpertParallel::Load load;
  for (uint32_t expert = 0; expert < statistics_.local_experts; ++expert)
    load.tokens_per_expert.push_back(seen(statistics_.shown[statistics_.tokens_of(expert)]));
  for (uint32_t rank = 0; rank < statistics_.ranks; ++rank)
    load.waited_us.push_back(
        static_cast<double>(seen(statistics_.shown[statistics_.waited_for(rank)])) * 1e-3);
  return load;
}

void ExpertParallel::Parts::trace_calls(bool on) {
  const size_t words = size_t{control_.blocks_max} * kMoments;
  if (on && moments_ == nullptr)
    moments_ = own<uint64_t>(words * sizeof(uint64_t), DeviceMemory::Kind::shared);
  for (size_t i = 0; on && i < words; ++i)
    std::atomic_ref(moments_[i]).store(0, std::memory_order_relaxed);
  traces_ = on;
}

std::vector<ExpertParallel::Moment> ExpertParallel::Parts::last_trace() const {
  std::vector<ExpertParallel::Moment> trace;
  for (uint32_t block = 0; moments_ != nullptr && block < control_.blocks_max; ++block) {
    const size_t first = trace.size();
    for (uint32_t moment = 0; moment < kMoments; ++moment)
      if (const uint64_t ns = seen(moments_[size_t{block} * kMoments + moment]); ns != 0)
        trace.push_back({block, kMomentNames[moment], ns});
    std::stable_sort(trace.begin() + static_cast<std::ptrdiff_t>(first), trace.end(),
                     [](const auto& left, const auto& right) { return left.ns < right.ns; });
  }
  return trace;
}

}  // namespace tokenyard
