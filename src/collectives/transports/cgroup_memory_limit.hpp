/// How much memory this process's control groups still grant.
#pragma once

#include <cstddef>
#include <filesystem>

namespace tokenyard::collectives {

/// Bytes that can be had before a limit is hit, counting what the kernel would give back of files
/// it has cached. Where no limit is found: all there are. Asked before memory is committed, because
/// whoever goes over the limit is not refused but killed.
size_t cgroup_memory_limit(const std::filesystem::path& groups = "/sys/fs/cgroup",
                           const std::filesystem::path& membership = "/proc/self/cgroup");

}  // namespace tokenyard::collectives
