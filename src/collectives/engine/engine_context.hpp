/// State that all groups of a process share, under the engine's lock.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/mutant.hpp"
#include "collectives/engine/outcome.hpp"
#include "collectives/interfaces/channel.hpp"
#include "collectives/interfaces/memory_pool.hpp"
#include "control/participant.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

struct QuorumFacts {
  std::vector<Slot> answering;
  uint32_t needed = 0;
};

struct EngineContext {
  Transport* transport = nullptr;
  control::MembershipControl* control = nullptr;
  Slot self = 0;
  OnFailure on_failure = OnFailure::raise;
  Places places = Places::kept;
  size_t chunk_bytes = 0;
  EngineMutant mutant = EngineMutant::none;

  View view;
  bool frozen = true;  ///< no operation may commit or make progress
  std::optional<QuorumFacts> quorum_missing;
  MemoryPool pool{size_t{256} << 20};
  /// How often each label was founded in this epoch; the same on all ranks of a label.
  std::map<uint64_t, uint64_t> founded;

  CollectivesCounters counters;
  /// Outcomes to announce, by the thread that releases the lock.
  std::vector<std::shared_ptr<Outcome>> finished;

  /// Latest epoch in which ranks missing from the view can have been lost. A recovering epoch is
  /// later, so it puts behind it all failures due to them, whenever they are reported.
  Epoch lost_in() const { return view.epoch - 1; }

  void finish(const std::shared_ptr<Outcome>& outcome, std::exception_ptr error) {
    outcome->finish(std::move(error));
    finished.push_back(outcome);
  }
};

/// A group, as all its ranks know it.
struct GroupIdentity {
  GroupId id = 0;
  std::string name;
  std::vector<Slot> slots = {};  ///< by rank
  uint32_t self = 0;             ///< this process's rank
  uint64_t label = 0;            ///< hash of name and slots; 0: never closed

  std::vector<uint32_t> active_ranks(const View& view) const {
    std::vector<uint32_t> active;
    for (uint32_t rank = 0; rank < slots.size(); ++rank) {
      if (view.at(slots[rank])) active.push_back(rank);
    }
    return active;
  }
  std::vector<uint32_t> ranks_of(const std::vector<Slot>& some) const {
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < slots.size(); ++rank) {
      for (const Slot slot : some) {
        if (slot == slots[rank]) ranks.push_back(rank);
      }
    }
    return ranks;
  }
};

}  // namespace tokenyard::collectives
