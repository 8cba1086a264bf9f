/// Which GPUs reach one another's memory by loads and stores, and why not where they do not. GPUs
/// are known by UUID, since their numbers mean something else in every process.
#pragma once

#include <string>

#include "tokenyard/world.hpp"

namespace tokenyard::nvlink {

/// This process's number for a GPU; -1 if CUDA_VISIBLE_DEVICES hides it.
int visible_device(const std::string& uuid);

/// How `device` of this process reaches the memory of the GPU called `peer_uuid`. Of a GPU that is
/// hidden here nothing can be asked; mapping its memory is then the test.
PeerReach reach_of(int device, const std::string& peer_uuid);

}  // namespace tokenyard::nvlink
