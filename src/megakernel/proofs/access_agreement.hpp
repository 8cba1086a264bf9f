/// What each rank finds out about its own graph, by its own addresses, and tells all ranks before
/// anything is launched.
#pragma once

#include "megakernel/shape.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::megakernel {

/// Collective. Throws InvalidGraph, on every rank alike: undeclared_access or shared_memory where
/// the arguments of any rank's task disagree with its regions or with the kernel, tables_differ
/// where ranks find a tensor at different places of the same memory.
void agree_on_accesses(World& world, const Graph& graph, const Shape& shape);

}  // namespace tokenyard::megakernel
