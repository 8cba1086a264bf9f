/// Worlds with one process per rank, on hosts or GPUs.
#pragma once

#include <memory>

#include "tokenyard/world.hpp"

namespace tokenyard {

/// Returns this rank's end of a world with one GPU per rank. Throws Unsupported in a build without
/// CUDA.
std::unique_ptr<World> connect_cuda(const Rendezvous& rendezvous, const WorldOptions& options);

}  // namespace tokenyard
