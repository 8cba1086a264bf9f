/// Bulk copies in flight, and the agent that reads their sources and writes their destinations at
/// times of the seed's choosing.
///
/// A copy's accesses belong to agents, actors of their own: one per Completion for loads, two per
/// issuing thread for stores. A proxy fence orders ordinary accesses before a copy. Only the end of
/// its Completion's phase (a load, completions.hpp) or the issuer's wait for its group (a store,
/// StoreGroups) orders anything after it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "simulation/completions.hpp"
#include "simulation/history.hpp"
#include "simulation/late_stores.hpp"
#include "simulation/region.hpp"

namespace tokenyard::simulation {

/// The groups of one thread's bulk stores. Closed groups are numbered from 1; the open one is
/// `closed + 1`. A group's number is the epoch of its accesses, in two slots: one for the reads of
/// sources, which wait_read awaits, and one for the writes, which wait awaits.
struct StoreGroups {
  uint32_t source_agent = 0, target_agent = 0;  ///< actors, created at the first store
  Slot source_slot = 0, target_slot = 0;
  Epoch source_first = 0, target_first = 0;  ///< epoch of group 0
  bool used = false;
  uint32_t closed = 0;
  uint32_t sources_awaited = 0, targets_awaited = 0;  ///< groups
  bool open_has_stores = false;
};

struct Copy {
  Slot issuer = 0;
  uint32_t from_rank = 0, to_rank = 0, issuer_rank = 0;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::vector<std::byte> bytes;    ///< read from the source but not yet written
  uint32_t first = 0;              ///< index of the first piece moved; the others follow cyclically
  uint32_t read = 0, written = 0;  ///< pieces
  void* completion = nullptr;      ///< a load's; null for a store
  uint32_t group = 0;              ///< a store's

  uint32_t pieces() const { return static_cast<uint32_t>(bytes.size() / kCellBytes); }
};

class BulkAgent {
 public:
  explicit BulkAgent(Completions& completions) : completions_(completions) {}

  void add(Copy copy, uint32_t bytes, Random& random);
  /// Returns whether this thread's stores up to `group` have read their sources and, unless
  /// `sources_only`, written their destinations.
  bool stores_done(Slot issuer, uint32_t group, bool sources_only) const;
  bool step(bool idle, const Chance& chance);
  /// Completes every store of this thread: its grid has ended.
  void finish_stores(Slot issuer);
  /// Drops loads into memory whose lifetime ends. Returns their number.
  uint32_t drop_loads(const void* base, size_t bytes);
  void stop(uint32_t rank, InFlight fate, Random& random);
  bool empty() const { return copies_.empty(); }

 private:
  void advance(Copy& copy, uint32_t pieces);
  void finish(size_t index);

  Completions& completions_;
  std::vector<std::unique_ptr<Copy>> copies_;  ///< in order of issue
};

}  // namespace tokenyard::simulation
