/// Worlds whose ranks live in this process, by what their kernels run on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/fabric.hpp"
#include "fabric/network/network.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// A world of one rank an accelerator, over one fabric that all of them share.
std::vector<std::unique_ptr<World>> join_all(
    const std::vector<std::shared_ptr<Accelerator>>& accelerators, std::shared_ptr<Fabric> fabric,
    const WorldOptions& options, const RunAside& run_aside = {});

/// Rank r on GPU r, or all ranks on GPU 0 where there are fewer. Throws Unsupported in a build
/// without CUDA.
std::vector<std::unique_ptr<World>> in_process_cuda(uint32_t ranks, const WorldOptions& options);

/// The CUDA that this library was built with, "13.0"; empty for a build without.
std::string cuda_toolkit();

}  // namespace tokenyard
