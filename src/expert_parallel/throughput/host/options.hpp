/// Checks the options of ExpertParallel, and that all ranks give the same.
#pragma once

#include "tokenyard/expert_parallel.hpp"

namespace tokenyard {

/// Throws InvalidArgument naming the first invalid option.
void check_options(const ExpertParallelOptions& options, uint32_t ranks);

/// Collective; throws on all ranks alike. Throws Unsupported if a rank cannot load from and store
/// to every other; InvalidArgument naming the first option in which a rank differs from the
/// first present one.
void agree_on_options(World& world, const ExpertParallelOptions& options);

}  // namespace tokenyard
