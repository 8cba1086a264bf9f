/// Deliberate faults, which prove that the suites detect them: one operation at one place in a
/// kernel behaves worse than its code says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "simt/memory.hpp"

namespace tokenyard::simulation {

enum class Fault : uint8_t {
  release_made_relaxed,
  acquire_made_relaxed,
  sys_made_gpu,
  barrier_removed,
  store_dropped,  ///< a strong store: an epoch that is not advanced
  proxy_fence_removed,
};
const char* name(Fault fault);

/// All addresses of one place in the source: inlining may have made several.
struct Mutation {
  Fault fault;
  std::vector<simt::CodeAddress> where;
};

/// Asked at each operation whether it is the mutated one. In a clean run it notes instead where
/// each fault could be put.
class Mutator {
 public:
  using Sites = std::set<std::pair<Fault, simt::CodeAddress>>;

  Mutator() = default;
  explicit Mutator(Mutation mutation) : mutating_(true), mutation_(std::move(mutation)) {}

  bool applies(Fault fault, simt::CodeAddress where) {
    if (!mutating_) {
      sites_.emplace(fault, where);
      return false;
    }
    if (fault != mutation_.fault) return false;
    return std::find(mutation_.where.begin(), mutation_.where.end(), where) !=
           mutation_.where.end();
  }
  const Sites& sites() const { return sites_; }

 private:
  bool mutating_ = false;
  Mutation mutation_{};
  Sites sites_;
};

}  // namespace tokenyard::simulation
