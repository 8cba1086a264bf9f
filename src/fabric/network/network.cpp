#include "fabric/network/network.hpp"

#include <algorithm>
#include <utility>

namespace tokenyard {

std::vector<uint32_t> Network::claim_queues(uint32_t count) {
  const std::lock_guard lock(claims_mutex_);
  claimed_.resize(queues_per_peer());
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0; number < claimed_.size() && numbers.size() < count; ++number)
    if (!claimed_[number]) numbers.push_back(number);
  if (numbers.size() < count) return {};
  for (const uint32_t number : numbers) claimed_[number] = true;
  on_claims(static_cast<size_t>(std::ranges::count(claimed_, true)));
  return numbers;
}

void Network::give_back_queues(const std::vector<uint32_t>& numbers) {
  const std::lock_guard lock(claims_mutex_);
  for (const uint32_t number : numbers) claimed_[number] = false;
  on_claims(static_cast<size_t>(std::ranges::count(claimed_, true)));
}

void Network::keep(std::shared_ptr<void> memory) {
  const std::lock_guard lock(claims_mutex_);
  kept_memory_.push_back(std::move(memory));
}

}  // namespace tokenyard
