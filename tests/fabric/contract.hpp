/// A world's guarantees to kernels, as programs that each rank runs. One suite for every fabric:
/// contract_test.cpp runs it over threads, processes and GPUs, contract_simulation.cpp under the
/// simulator.
#pragma once

#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/contract_kernels.hpp"
#include "fabric/gather.hpp"
#include "fabric/promise.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::testing {

/// Owns one rank's window in its arena, and runs the contract's kernels on it. All ranks construct
/// it together.
class ContractSite {
 public:
  explicit ContractSite(World& world)
      : world_(world),
        gpu_(accelerator_of(world)),
        window_(arena_of(world).allocate(sizeof(ContractWindow), stream_)),
        cell_(gpu_, abort_flag_of(world)),
        offsets_(static_cast<uint64_t*>(gpu_.allocate(sizeof(uint64_t) * kContractRanks))),
        wrong_(static_cast<uint32_t*>(gpu_.allocate(sizeof(uint32_t)))) {
    gpu_.fill(window_.data(), 0, sizeof(ContractWindow), stream_);
    const auto offsets = gather(world, window_.offset(), "windows");
    gpu_.copy(offsets_, offsets.data(), offsets.size() * sizeof(uint64_t), stream_);
    finish();
    world.barrier("windows are clean");
  }
  ~ContractSite() {
    gpu_.free(offsets_);
    gpu_.free(wrong_);
  }
  ContractSite(const ContractSite&) = delete;
  ContractSite& operator=(const ContractSite&) = delete;

  /// Runs the kernel to its end. Throws the error of a wait that failed in it.
  void run(const Kernel<ContractParams>& kernel, uint32_t epoch, std::chrono::nanoseconds timeout) {
    const ContractParams params{.wait_context = cell_.wait_context(timeout),
                                .arenas = arena_of(world_).bases(),
                                .windows = offsets_,
                                .rank = world_.rank(),
                                .ranks = world_.size(),
                                .epoch = epoch,
                                .wrong = wrong_};
    const uint32_t warps = kernel.entry.threads_max / kWarpLanes;
    launch(gpu_, kernel, {.blocks = 1, .warps = warps}, stream_, params);
    finish();
    static const std::array<std::string, 3> kPhases = {"contract: stored", "contract: copied",
                                                       "contract: absent"};
    cell_.check(kPhases);
  }
  uint32_t wrong() {
    uint32_t count = 0;
    gpu_.copy(&count, wrong_, sizeof count, stream_);
    finish();
    return count;
  }

 private:
  void finish() {
    const Event end = gpu_.record(stream_);
    const bool ended =
        gpu_.wait_until(gpu_.now() + std::chrono::seconds(60), [&] { return gpu_.done(end); });
    gpu_.free_event(end);
    promise(ended, "the stream's work did not end within 60 s");
  }

  World& world_;
  Accelerator& gpu_;
  Stream stream_;
  ArenaBlock window_;
  ErrorRecord cell_;
  uint64_t* offsets_;
  uint32_t* wrong_;
};

/// Data that peers stored or copied is visible once their flag is.
inline void keeps_order(World& world, uint32_t epochs) {
  ContractSite site(world);
  for (uint32_t epoch = 1; epoch <= epochs; ++epoch) {
    site.run(contract_exchange_kernel, epoch, world.timeout());
  }
  const uint32_t wrong = site.wrong();
  promise(wrong == 0, fmt::format("{} words were not visible although their flag was", wrong));
  world.barrier("exchanged");
}

/// A wait for a rank that never comes ends at its deadline and names the rank and the phase.
inline void names_the_absent(World& world) {
  ContractSite site(world);
  const uint32_t absent = world.size() - 1;
  if (world.rank() != absent) {
    try {
      site.run(contract_wait_kernel, 1, std::chrono::milliseconds(100));
      promise(false, "a wait for an absent rank succeeded");
    } catch (const PeerTimeout& error) {
      // Ranks that share a GPU launch together, so there the launch itself waits for the rank.
      const bool named = error.facts.phase == "contract: absent" ||
                         error.facts.phase == "launch: contract_wait_kernel";
      promise(error.facts.rank == absent && named,
              std::string("the timeout names another rank or phase: ") + error.what());
      promise(error.facts.waited_s >= 0.1, "the wait ended before its deadline");
    }
  }
  world.barrier("nobody came");
}

/// Cancelling a world ends its waits, in kernels and on the host.
inline void can_be_cancelled(World& world) {
  ContractSite site(world);
  world.barrier("about to cancel");
  world.cancel();
  for (const bool in_kernel : {true, false}) {
    try {
      if (in_kernel && world.rank() + 1 < world.size()) {
        site.run(contract_wait_kernel, 1, std::chrono::seconds(60));
      } else {
        world.barrier("never");
      }
      promise(false, "a cancelled wait succeeded");
    } catch (const Cancelled&) {
      // Expected.
    }
  }
}

/// The topology states how each rank is reached, and the arena agrees.
inline void tells_who_is_reached(World& world) {
  const Topology& topology = world.topology();
  promise(topology.peers.size() == world.size(), "a rank is missing from the topology");
  for (uint32_t rank = 0; rank < world.size(); ++rank) {
    const PeerReach& peer = topology.peers[rank];
    const bool self = rank == world.rank();
    promise(self == (peer.reach == Reach::self), "exactly this rank must have reach self");
    const bool mapped = peer.reach == Reach::self || peer.reach == Reach::load_store;
    promise(mapped == (arena_of(world).base_of(rank) != nullptr),
            "the arena's bases disagree with the topology");
    promise(mapped || !peer.why_not.empty(), "a rank without load/store reach has no reason");
    promise(mapped || topology.host_of[rank] != topology.host_of[world.rank()],
            "a rank of the same host has no load/store reach");
  }
}

/// A world rebuilt without a rank has new memory, and works.
inline void can_be_rebuilt(World& world) {
  if (world.rank() == 1) return;
  const std::unique_ptr<World> smaller = world.rebuild({1});
  promise(smaller->size() == world.size() - 1, "the rebuilt world must have one rank fewer");
  promise(smaller->rank() == (world.rank() == 0 ? 0 : world.rank() - 1),
          "survivors must be renumbered in order");
  promise(arena_of(*smaller).base() != arena_of(world).base(),
          "the rebuilt world must have new memory");
  keeps_order(*smaller, 2);
}

}  // namespace tokenyard::testing
