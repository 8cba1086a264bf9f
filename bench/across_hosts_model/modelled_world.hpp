/// A world of hosts with modelled GPUs and a modelled wire between them.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bench/across_hosts_model/model_accelerator.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "world/in_process.hpp"

namespace tokenyard::bench {

class ModelledWorld {
 public:
  /// `run`: runs a call of all ranks in virtual time.
  ModelledWorld(uint32_t hosts, uint32_t locals, size_t arena_bytes, Calls::Run run)
      : ranks_(hosts * locals),
        wire_(ranks_, 4, costs_),
        machine_(costs_, wire_),
        calls_(ranks_, std::move(run)) {
    std::vector<uint32_t> host_of;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      accelerators_.push_back(std::make_shared<ModelAccelerator>(calls_, rank));
      host_of.push_back(rank / locals);
    }
    worlds_ =
        join_all(accelerators_, std::make_shared<InProcessFabric>(host_of),
                 {.timeout = std::chrono::hours(10), .arena_bytes = arena_bytes}, {},
                 [this](const NetworkPlace& place, TimePoint) { return wire_.network(place); });
  }

  const Costs& costs() const { return costs_; }
  Wire& wire() { return wire_; }
  Machine& machine() { return machine_; }
  Calls& calls() { return calls_; }

  /// Runs `body` for every rank, each on a thread. Throws the first error.
  void each_rank(const std::function<void(World&)>& body) {
    std::vector<std::jthread> threads;
    std::vector<std::exception_ptr> thrown(ranks_);
    for (uint32_t rank = 0; rank < ranks_; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(*worlds_[rank]);
        } catch (...) {
          thrown[rank] = std::current_exception();
        }
      });
    threads.clear();
    for (const auto& error : thrown)
      if (error) std::rethrow_exception(error);
  }

 private:
  const uint32_t ranks_;
  const Costs costs_;
  Wire wire_;
  Machine machine_;
  Calls calls_;
  std::vector<std::shared_ptr<Accelerator>> accelerators_;
  std::vector<std::unique_ptr<World>> worlds_;
};

inline std::shared_ptr<void> allocated(Accelerator& accelerator, size_t bytes) {
  return {accelerator.allocate(bytes), [&accelerator](void* at) { accelerator.free(at); }};
}

}  // namespace tokenyard::bench
