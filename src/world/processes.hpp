/// Worlds of one process a rank, by what their kernels run on.
#pragma once

#include <memory>

#include "tokenyard/world.hpp"

namespace tokenyard {

/// One GPU a rank. Throws Unsupported in a build without CUDA.
std::unique_ptr<World> connect_cuda(const Rendezvous& rendezvous, const WorldOptions& options);

/// How long the ranks may take to come together.
std::chrono::nanoseconds rendezvous_timeout(const WorldOptions& options);

}  // namespace tokenyard
