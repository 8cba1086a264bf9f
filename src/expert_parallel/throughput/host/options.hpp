/// What ExpertParallel may be asked for, and that all ranks ask for the same.
#pragma once

#include "tokenyard/expert_parallel.hpp"

namespace tokenyard {

/// Throws InvalidArgument, naming the first option that cannot be.
void check_options(const ExpertParallelOptions& options, uint32_t ranks);

/// Collective: throws on all ranks alike. Unsupported if some rank cannot load from and store to
/// all others; InvalidArgument naming the first option in which a rank differs from rank 0.
void agree_on_options(World& world, const ExpertParallelOptions& options);

}  // namespace tokenyard
