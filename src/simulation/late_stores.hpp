/// Weak stores in flight: issued, but not yet in memory.
///
/// A store's bytes reach real memory at a moment of the seed's choosing, in any order among
/// different addresses, whole or in pieces of 4 bytes. They land at the latest when the clock of
/// another thread covers the store, since that thread may then read them. Only a program that lacks
/// some ordering can notice; it reads old bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "simulation/actor.hpp"
#include "simulation/history.hpp"
#include "simulation/region.hpp"

namespace tokenyard::simulation {

/// The fate of a stopped rank's stores in flight.
enum class InFlight : uint8_t { land, vanish, tear };

class LateStores {
 public:
  void add(Region& region, void* to, const void* value, uint32_t bytes, const ThreadState& me,
           const Chance& chance);
  /// Lands all stores that this thread knows, except its own.
  void land_known(const ThreadState& me) {
    if (!active_.empty()) land_covered(me);
  }
  /// Lands this thread's own stores to these bytes: a thread sees its own stores, and those to one
  /// address stay in order.
  void land_own(Region& region, const void* at, uint32_t bytes, const ThreadState& me);
  /// Lands the stores that the policy allows now. Returns false if there were none.
  bool step(bool idle, const Chance& chance);
  void stop(uint32_t rank, InFlight fate, Random& random);
  bool empty() const { return active_.empty(); }

 private:
  struct Store {
    Region* region;
    std::byte* to;
    Value value;
    uint8_t bytes;
    bool landed = false;
    Epoch epoch;
    uint64_t number;  ///< in order of issue
  };
  struct Queue {
    uint32_t rank = 0;
    std::vector<Store> stores;
    size_t landed = 0;
  };

  void add_piece(Region& region, std::byte* to, const std::byte* value, uint32_t bytes,
                 const ThreadState& me);
  void land_covered(const ThreadState& me);
  void land(Queue& queue, size_t index);
  void finish(Store& store, bool really);
  void retire(size_t active_index);
  bool clogged(const Queue& queue, const Store& store, const Policy& policy) const;
  bool land_some(bool idle, const Chance& chance);

  std::vector<Queue> queues_;  ///< by slot
  std::vector<Slot> active_;   ///< slots whose queues are not empty
  uint64_t issued_ = 0;
};

}  // namespace tokenyard::simulation
