/// Checks that need a rank's own addresses; all ranks exchange their results before any launch.
#pragma once

#include "megakernel/far_ranks.hpp"
#include "megakernel/shape.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::megakernel {

/// Collective. Throws InvalidGraph, alike on every rank: undeclared_access or shared_memory if the
/// arguments of any rank's task disagree with its regions or with the kernel, tables_differ if
/// ranks place a shared tensor at different offsets of the same arena, between_hosts if a task
/// writes to a tensor of a far rank that has no mirror here.
void agree_on_accesses(World& world, const Graph& graph, const Shape& shape, const FarRanks& far);

}  // namespace tokenyard::megakernel
