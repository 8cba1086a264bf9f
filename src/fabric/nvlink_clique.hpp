/// The NVLink network of several machines (GB200 NVL72, say) that a GPU is part of.
#pragma once

#include <string>

namespace tokenyard {

/// Returns the name of the clique, alike for all its GPUs on all machines, as NVML tells it; empty
/// if the GPU is in none, or the driver does not say.
std::string clique_of(const std::string& gpu_uuid);

}  // namespace tokenyard
