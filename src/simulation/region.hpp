/// The memory that a simulated run checks: allocations, arenas, blocks' shared memory. All other
/// memory (stacks, the host's heap) behaves as usual and is not checked; a word of the vocabulary
/// that accesses it is reported.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "simulation/access_record.hpp"
#include "simulation/history.hpp"

namespace tokenyard::simulation {

/// Sixteen bytes of checked memory: accesses so far, and the values that strong accesses may find.
struct Cell {
  Records records;
  History* histories = nullptr;  ///< list of its words that strong accesses use
  uint32_t late = 0;             ///< weak stores to it in flight
};
inline constexpr size_t kCellBytes = 16;

struct Region {
  std::string name;
  std::byte* base;
  size_t bytes;
  uint32_t rank;    ///< owner of the memory
  uint32_t number;  ///< in order of registration, as traces name it
  bool alive = true;

  /// Returns the cell of the byte at `offset`.
  Cell& cell(size_t offset) {
    auto& page = pages[offset / kPageBytes];
    if (page == nullptr) page = std::make_unique<Cell[]>(kPageBytes / kCellBytes);
    return page[offset % kPageBytes / kCellBytes];
  }

  static constexpr size_t kPageBytes = 4096;
  std::vector<std::unique_ptr<Cell[]>> pages;  ///< allocated at the first access
  std::deque<History> histories;               ///< owns the histories that cells list
};

class Regions {
 public:
  /// Adds a region. `base` must be 16-byte aligned; regions must not overlap.
  Region& add(std::string name, void* base, size_t bytes, uint32_t rank);
  /// Marks a region as freed, so that later accesses are reported. Its addresses must stay unused.
  void remove(void* base);
  /// Forgets a region, whose addresses the process may then use for anything.
  void forget(void* base);
  /// Returns the region that holds this address; null if there is none.
  Region* find(const void* address) {
    const auto* at = static_cast<const std::byte*>(address);
    const Found& recent = recent_[entry(at)];
    return at >= recent.begin && at < recent.end ? recent.region : search(at);
  }
  /// Returns "arena of rank 1 + 0x40", or the bare address outside all regions.
  std::string describe(const void* address);

 private:
  /// A region, or a gap between two (kernels' parameters are in a gap).
  struct Found {
    const std::byte *begin = nullptr, *end = nullptr;
    Region* region = nullptr;
  };
  /// Returns the index in `recent_` for the 128 bytes around an address.
  static size_t entry(const std::byte* at) {
    return reinterpret_cast<uintptr_t>(at) / 128 * 0x9e3779b97f4a7c15u >> 55;
  }
  Region* search(const std::byte* address);

  std::vector<std::unique_ptr<Region>> sorted_;  ///< by base
  std::array<Found, 512> recent_{};              ///< a cache of look-ups, by entry()
  uint32_t added_ = 0;
};

}  // namespace tokenyard::simulation
