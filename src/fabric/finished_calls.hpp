/// The agreement of ranks that go on in another world about calls that not all of them finished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

/// Calls that a rank has finished in the worlds before, and the state of its object after them.
struct FinishedCalls {
  uint64_t finished = 0;
  std::vector<std::byte> state;
};

struct AgreedCalls {
  uint64_t finished = 0;            ///< calls that all ranks which go on have finished
  std::optional<uint32_t> first;    ///< first rank that has finished no more; none if all are new
  std::vector<uint32_t> newcomers;  ///< ascending, if others go on
  std::vector<std::optional<FinishedCalls>> ranks;  ///< none: absent, or new

  /// Returns the state of the first rank that has finished no more; empty if all are new.
  std::span<const std::byte> state() const;
};

/// Collective. `mine`: of this rank; none on a newcomer. Throws InvalidArgument for an `object`
/// some rank of which is of another build.
AgreedCalls agree_on_calls(World& world, const std::string& object,
                           const std::optional<FinishedCalls>& mine);

/// Returns the present ranks of `before` that do not go on in `now`, ascending.
std::vector<uint32_t> lost_between(const World& before, const World& now,
                                   const std::vector<uint32_t>& newcomers);

}  // namespace tokenyard
