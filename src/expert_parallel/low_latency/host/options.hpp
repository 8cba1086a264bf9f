/// Checks the options of a LowLatency object, and that all ranks give the same.
#pragma once

#include <optional>

#include "expert_parallel/low_latency/host/paths.hpp"
#include "expert_parallel/low_latency/host/plan.hpp"

namespace tokenyard::low_latency {

/// Throws InvalidArgument naming the first option that is invalid on any device.
void check_options(const LowLatencyOptions& options, uint32_t ranks);

/// Throws InvalidArgument naming sms unless a call may have `sms` blocks. `rank`: the rank whose
/// option it is, if it may be another's.
void require_sms(const Plan& plan, uint32_t sms, std::optional<uint32_t> rank = std::nullopt);
/// Throws InvalidArgument naming sms unless a dispatch on `sms` blocks fits in their shared memory.
void require_shared_memory(const Plan& plan, Part part, uint32_t sms,
                           std::optional<uint32_t> rank = std::nullopt);

/// Collective; throws on all ranks alike. Returns this rank's paths to the others. Throws
/// Unsupported if a rank cannot reach every other one as the options want; InvalidArgument naming
/// the first option in which a rank differs from the first present one, that is invalid, or that
/// does not fit some rank's device.
Paths agree_on_options(World& world, const LowLatencyOptions& options);

}  // namespace tokenyard::low_latency
