#include "expert_parallel/throughput/host/counts.hpp"

#include <algorithm>

namespace tokenyard::throughput {

Counts::Counts(const Setup& setup)
    : accelerator_(setup.accelerator),
      ranks_(setup.world.size()),
      local_experts_(setup.local_experts()),
      memory_(accelerator_, CountsRecord::bytes(ranks_, local_experts_),
              DeviceMemory::Kind::shared) {}

std::vector<uint32_t> Counts::rows_from() const {
  return read(record()->rows_from(), ranks_);
}

std::vector<uint32_t> Counts::tokens_per_expert() const {
  return read(record()->tokens_per_expert(ranks_), local_experts_);
}

std::vector<uint32_t> Counts::read(const uint32_t* words, uint32_t count) const {
  std::vector<uint32_t> values(count);
  std::transform(words, words + count, values.begin(),
                 [&](const uint32_t& word) { return read(word); });
  return values;
}

}  // namespace tokenyard::throughput
