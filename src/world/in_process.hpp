/// Worlds whose ranks live in this process, on hosts or GPUs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/fabric.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network/simulated_network.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// Returns one world end per accelerator, each a rank; all share one fabric. A rank without an
/// accelerator is absent and has no end.
std::vector<std::unique_ptr<World>> join_all(
    const std::vector<std::shared_ptr<Accelerator>>& accelerators, std::shared_ptr<Fabric> fabric,
    const WorldOptions& options, const SimulatedCard& card = {}, const MakeNetwork& network = {});

/// Returns what runs each simulated card on a thread of this process.
RunAside cards_on_threads();

/// Returns what World::in_process does, with some ranks absent: null for these.
std::vector<std::unique_ptr<World>> in_process_without(const std::vector<uint32_t>& absent,
                                                       uint32_t ranks, const std::string& device,
                                                       const WorldOptions& options = {});

/// Returns worlds with rank r on GPU r, or with all ranks on GPU 0 if there are fewer GPUs. Throws
/// Unsupported in a build without CUDA.
std::vector<std::unique_ptr<World>> in_process_cuda(const std::vector<uint32_t>& absent,
                                                    uint32_t ranks, const WorldOptions& options);

/// Returns the CUDA version that this library was built with, for example "13.0"; empty if none.
std::string cuda_toolkit();

}  // namespace tokenyard
