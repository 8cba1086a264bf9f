/// Deliberate faults, which prove that the suites detect such faults: one operation at one place in
/// a kernel is weaker than its code says.
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
  store_dropped,  ///< a strong store or update: for example, an epoch does not advance
  proxy_fence_removed,
  rule_broken,  ///< a rule about values, where the kernel asks mutated()
};
const char* name(Fault fault);

/// A fault at one place in the source, which may have several addresses because of inlining.
struct Mutation {
  Fault fault;
  std::vector<simt::CodeAddress> where;
};

/// Decides for each operation whether it is the mutated one. In a run without a mutation, it
/// records where each fault could be applied.
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
