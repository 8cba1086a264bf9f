/// The expert map of one object: the expert that each place holds. All ranks have the same.
///
///     map that was set          as the caller gave it, or every expert once, in order
///     map in effect             that one, with the experts of ranks that do not live spread over
///                               empty places (spread_lost_experts)
///
/// The map in effect is a function of the map that was set and of the ranks that live, so ranks
/// that agree on these agree on it without a word, and a rank that comes back gets its experts
/// back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device_memory.hpp"
#include "expert_parallel/common/place_choices.hpp"
#include "tokenyard/expert_map.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// Returns the number of places of all ranks together. Fits 32 bits if the options are valid.
template <class Options>
uint32_t places_of(const Options& options, uint32_t ranks) {
  return options.places_per_rank == 0 ? options.experts : options.places_per_rank * ranks;
}
/// Throws InvalidArgument unless the ranks have places for all experts, and at most `most`.
void require_places(uint32_t experts, uint32_t places_per_rank, uint32_t ranks, uint64_t most);

/// Returns the map of an object to which none was given: each rank holds its share of the experts
/// (ExpertPartition) in its first places.
std::vector<int32_t> plain_expert_map(uint32_t experts, uint32_t places, uint32_t ranks);

class ExpertMap {
 public:
  /// Counts the ranks as living that are not absent.
  ExpertMap(World& world, uint32_t experts, uint32_t places);

  /// Returns the memory that a map takes on the device.
  static uint64_t device_bytes(uint32_t experts, uint32_t places) {
    return table_bytes(experts, places) + sizeof(Counters);
  }

  /// Collective: throws on all ranks alike unless all give the same map and it is one of this
  /// object's experts and places. Ranks that do not live may be silent. `what` names the call.
  void require_agreed(std::span<const int32_t> expert_at, const std::string& what) const;

  /// Set the map, empty for the plain one, and the ranks that live. The caller has waited for the
  /// kernels that use the table.
  void set(std::span<const int32_t> expert_at);
  void set_living(const std::vector<bool>& living);
  const std::vector<bool>& living() const { return living_; }
  const std::vector<int32_t>& given() const { return given_; }
  /// Returns how many maps callers have set in this object and in those that it follows.
  uint64_t version() const { return version_; }
  void follow(uint64_t version) { version_ = version; }
  /// Sets a map that the caller gives, another one than so far.
  void set_next(std::span<const int32_t> expert_at) {
    set(expert_at);
    ++version_;
  }
  /// Returns the map to set in an object of as many experts with `places` places on more ranks, or
  /// as many; empty for the plain one.
  std::vector<int32_t> carried_to(uint32_t places, uint32_t ranks) const;

  /// Returns the map in effect, [places].
  const std::vector<int32_t>& expert_at() const { return in_effect_; }
  /// Returns the expert at each place of a rank, or -1.
  std::vector<int32_t> held_by(uint32_t rank) const;
  /// Returns the experts that have no place, ascending.
  std::vector<uint32_t> lost() const;

  /// Returns whether ids have to be replaced by places.
  bool moves_choices() const { return moves_; }
  /// Returns the kernel's table, at an address that never changes: captured calls use the newest
  /// map.
  PlacementTable table() const;
  /// Returns the counters of lost choices.
  LostChoices lost_choices() const;
  /// Returns how many choices were lost so far. Any thread may call it; waits for nothing.
  uint64_t lost_choices_total() const;

  /// Converts an id seen by a kernel back to the caller's numbering.
  int64_t given_id(int64_t id) const;

 private:
  struct Counters {
    uint64_t total;
    uint32_t arrived;
  };
  static uint64_t table_bytes(uint32_t experts, uint32_t places) {
    return (uint64_t{experts} + 1 + places) * sizeof(uint32_t);
  }
  void take_effect();

  World& world_;
  Accelerator& accelerator_;
  const uint32_t experts_, places_;
  const ExpertPartition partition_;
  std::vector<int32_t> given_, in_effect_;  ///< [places]
  std::vector<bool> living_;                ///< [ranks]
  uint64_t version_ = 0;
  bool moves_ = false;
  const DeviceMemory table_, counters_, shown_;
};

}  // namespace tokenyard
