/// The memory that this process's control groups still allow it to allocate.
#pragma once

#include <cstddef>
#include <filesystem>

namespace tokenyard::collectives {

/// Returns how many bytes can be allocated before a limit is reached, counting reclaimable page
/// cache as free; without a limit, the largest size_t. Ask before committing memory: exceeding the
/// limit does not fail, it kills the process.
size_t cgroup_memory_limit(const std::filesystem::path& groups = "/sys/fs/cgroup",
                           const std::filesystem::path& membership = "/proc/self/cgroup");

}  // namespace tokenyard::collectives
