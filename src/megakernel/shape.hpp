/// From what a user asks for to what a kernel is launched with.
#pragma once

#include "megakernel/compile.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

/// What is left open is chosen for the device and the graph. Throws InvalidArgument naming an
/// option that no device can do.
Shape shape_of(const MegakernelOptions& options, const Graph& graph,
               const Accelerator& accelerator);

}  // namespace tokenyard::megakernel
