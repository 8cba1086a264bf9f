/// Requests of our own (device/network_request.hpp), as a card takes them from their ring.
#pragma once

#include "fabric/network/nic_queue.hpp"

namespace tokenyard {

class RequestFront {
 public:
  static constexpr bool kMlx5 = false;

  TOKENYARD_DEVICE RequestFront(const NicParams& params, uint32_t queue)
      : pair_(*params.pairs[queue]), refused_(params.refused) {}

  /// Returns the number of requests so far.
  TOKENYARD_DEVICE uint32_t posted(uint32_t, uint32_t) const {
    // Acquires the requests and their sources.
    return load<Order::acquire, Scope::sys>(&pair_.posted);
  }
  TOKENYARD_DEVICE void take(uint32_t turn, NetworkRequest& request) const {
    request = pair_.ring[turn % QueuePair::kSlots];
  }
  /// Tells that the sources of so many requests were read.
  TOKENYARD_DEVICE void complete(uint32_t count) const {
    // Releases the reads of sources and requests.
    store<Order::release, Scope::sys>(&pair_.completed, count);
  }
  TOKENYARD_DEVICE void refuse(uint32_t, const NicRefusal& refusal) const {
    publish_refusal(pair_, refused_, refusal.check, refusal.facts);
  }

 private:
  QueuePair& pair_;
  AbortWord* refused_;
};

}  // namespace tokenyard
