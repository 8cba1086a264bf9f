/// A network whose queues a modelled wire works off.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fabric/network/network.hpp"

namespace tokenyard::bench {

class WireNetwork final : public Network {
 public:
  WireNetwork(NetworkQueues queues, std::vector<bool> far, bool reaches_arena = true)
      : queues_(queues), far_(std::move(far)), reaches_arena_(reaches_arena) {}

  NetworkQueues queues() const override { return queues_; }
  uint32_t queues_per_peer() const override { return queues_.per_peer; }
  bool reaches(uint32_t rank) const override { return far_[rank]; }
  bool reaches_arena() const override { return reaches_arena_; }
  MemoryKey arena_key(uint32_t rank) const override { return rank + 1; }
  MemoryKey register_memory(std::byte*, size_t) override { return 0; }
  void deregister(MemoryKey) override {}
  std::string way(uint32_t) const override { return "modelled wire"; }
  void check(const std::string&) override {}
  bool drain(TimePoint) override { return true; }

 private:
  bool is_refused(uint32_t) override { return false; }
  void forget_refusals(const std::vector<bool>&) override {}

  const NetworkQueues queues_;
  const std::vector<bool> far_;
  const bool reaches_arena_;
};

}  // namespace tokenyard::bench
