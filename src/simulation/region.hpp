/// The memory that a simulated run knows: allocations, arenas, blocks' shared memory. Everything
/// else (stacks, the host's own heap) behaves plainly and is not checked; words of the vocabulary
/// that reach outside are reported.
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

/// Sixteen bytes of known memory: accesses so far, and the values a strong access may find.
struct Cell {
  Records records;
  History* histories = nullptr;  ///< of the words in it that strong accesses use; a short list
  uint32_t late = 0;             ///< stores under way to it that have not landed
};
inline constexpr size_t kCellBytes = 16;

struct Region {
  std::string name;
  std::byte* base;
  size_t bytes;
  uint32_t rank;    ///< whose memory
  uint32_t number;  ///< in order of registration; what traces name
  bool alive = true;

  /// The cell of the byte at `offset`.
  Cell& cell(size_t offset) {
    auto& page = pages[offset / kPageBytes];
    if (page == nullptr) page = std::make_unique<Cell[]>(kPageBytes / kCellBytes);
    return page[offset % kPageBytes / kCellBytes];
  }

  static constexpr size_t kPageBytes = 4096;
  std::vector<std::unique_ptr<Cell[]>> pages;  ///< made when first touched
  std::deque<History> histories;               ///< owns what the cells list
};

class Regions {
 public:
  /// `base` is 16-byte aligned; regions do not overlap.
  Region& add(std::string name, void* base, size_t bytes, uint32_t rank);
  /// Later accesses are reported as uses of freed memory. Its addresses must stay unused.
  void remove(void* base);
  /// The addresses go back to the process, which may use them for anything.
  void forget(void* base);
  /// The region that holds this address; null if none does.
  Region* find(const void* address) {
    const auto* at = static_cast<const std::byte*>(address);
    const Found& recent = recent_[entry(at)];
    return at >= recent.begin && at < recent.end ? recent.region : search(at);
  }
  /// "arena of rank 1 + 0x40", or the address where nothing is known about it.
  std::string describe(const void* address);

 private:
  /// A region, or a gap between two: kernels' parameters lie in one.
  struct Found {
    const std::byte *begin = nullptr, *end = nullptr;
    Region* region = nullptr;
  };
  /// Of `recent_`, for the 128 bytes around an address.
  static size_t entry(const std::byte* at) {
    return reinterpret_cast<uintptr_t>(at) / 128 * 0x9e3779b97f4a7c15u >> 55;
  }
  Region* search(const std::byte* address);

  std::vector<std::unique_ptr<Region>> sorted_;  ///< by base; none overlap
  std::array<Found, 512> recent_{};              ///< last, by address
  uint32_t added_ = 0;
};

}  // namespace tokenyard::simulation
