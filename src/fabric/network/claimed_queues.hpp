/// Queues of a network that one object has for itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/network/network.hpp"

namespace tokenyard {

/// Queues at every peer that nobody else uses, as long as this object lives: all of those asked
/// for, or none.
class ClaimedQueues {
 public:
  explicit ClaimedQueues(Network& network, uint32_t count = 1)
      : network_(network), numbers_(network.claim_queues(count)) {}
  ~ClaimedQueues() { network_.give_back_queues(numbers_); }
  ClaimedQueues(const ClaimedQueues&) = delete;
  ClaimedQueues& operator=(const ClaimedQueues&) = delete;

  bool exist() const { return !numbers_.empty(); }
  uint32_t number(uint32_t which = 0) const { return numbers_[which]; }

 private:
  Network& network_;
  const std::vector<uint32_t> numbers_;
};

/// Returns why an object that takes `count` queues cannot be made: `rank` has fewer left.
std::string too_few_queues(const Network& network, uint32_t count, uint32_t rank);

}  // namespace tokenyard
