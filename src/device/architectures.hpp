/// Which GPUs a build has code for.
#pragma once

#include <string>
#include <string_view>

namespace tokenyard {

/// A GPU's compute capability: sm_90 is 9, 0.
struct ComputeCapability {
  int major, minor;
};

/// Kernels copy in bulk and wait on such copies in shared memory, which GPUs do from here on.
inline constexpr ComputeCapability kOldestGpu{9, 0};

/// Returns whether a GPU can run code that was compiled for `architectures`, a list with commas in
/// the words of CMAKE_CUDA_ARCHITECTURES ("90a-real,100a-real,90-virtual"). Machine code runs on
/// GPUs of its major version that are not older, PTX on all that are not older; either runs on one
/// architecture only where the name ends in `a`, and on its major version where it ends in `f`.
/// Lists that name no architecture, such as "native", count as code for all.
bool has_code_for(std::string_view architectures, ComputeCapability gpu);

/// Returns why a build has no code for a GPU and what to do about it; empty if it has.
std::string missing_code(std::string_view architectures, ComputeCapability gpu);

}  // namespace tokenyard
