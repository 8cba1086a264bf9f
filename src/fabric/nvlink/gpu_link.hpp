/// Finds which GPUs reach one another's memory by loads and stores, and why others do not. GPUs are
/// identified by UUID, since each process may number them differently.
#pragma once

#include <string>

#include "tokenyard/world.hpp"

namespace tokenyard::nvlink {

/// Returns this process's number of a GPU; -1 if CUDA_VISIBLE_DEVICES hides it.
int visible_device(const std::string& uuid);

/// Returns how `device` of this process reaches the memory of the GPU `peer_uuid`. A GPU that is
/// hidden here cannot be queried and is assumed reachable; mapping its memory is then the test.
PeerReach reach_of(int device, const std::string& peer_uuid);

}  // namespace tokenyard::nvlink
