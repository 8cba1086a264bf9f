#include "fabric/network/network.hpp"

#include <algorithm>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard {

std::vector<uint32_t> Network::claim_queues(uint32_t count) {
  const std::lock_guard lock(claims_mutex_);
  claimed_.resize(queues_per_peer());
  retire_refused();  // A refusal may have come late.
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0; number < claimed_.size() && numbers.size() < count; ++number)
    if (!claimed_[number] && !is_retired(number)) numbers.push_back(number);
  if (numbers.size() < count) return {};
  for (const uint32_t number : numbers) claimed_[number] = true;
  on_claims(static_cast<size_t>(std::ranges::count(claimed_, true)));
  return numbers;
}

void Network::give_back_queues(const std::vector<uint32_t>& numbers) {
  const std::lock_guard lock(claims_mutex_);
  for (const uint32_t number : numbers) claimed_[number] = false;
  retire_refused();
  on_claims(static_cast<size_t>(std::ranges::count(claimed_, true)));
}

void Network::retire_refused() {
  std::vector<bool> retired(claimed_.size());
  bool any = false;
  for (uint32_t number = 0; number < claimed_.size(); ++number) {
    const bool before = is_retired(number);
    retired[number] = before || (!claimed_[number] && is_refused(number));
    any |= retired[number] != before;
  }
  if (!any) return;
  {
    const std::lock_guard lock(retired_mutex_);
    retired_ = retired;
  }
  forget_refusals(retired);
}

bool Network::is_retired(uint32_t number) const {
  const std::lock_guard lock(retired_mutex_);
  return number < retired_.size() && retired_[number];
}

std::vector<QueuePair*> Network::in_use(std::vector<QueuePair*> pairs) const {
  for (QueuePair*& pair : pairs)
    if (pair != nullptr && is_retired(pair->number)) pair = nullptr;
  return pairs;
}

bool Network::drain_at_end(TimePoint until) {
  has_drained_ = true;  // Also if an interrupt ends the wait.
  return drain(until);
}

MemoryKey Network::register_gpu_memory(std::byte*, size_t bytes) {
  throw InvalidArgument("register_gpu_memory", "a network that takes memory of a GPU",
                        std::to_string(bytes) + " bytes");
}

void Network::keep(std::shared_ptr<void> memory) {
  const std::lock_guard lock(claims_mutex_);
  kept_memory_.push_back(std::move(memory));
}

}  // namespace tokenyard
