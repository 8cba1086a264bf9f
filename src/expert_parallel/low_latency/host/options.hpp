/// Checks the options of a LowLatency object, and that all ranks give the same.
#pragma once

#include <optional>

#include "expert_parallel/low_latency/host/plan.hpp"

namespace tokenyard::low_latency {

/// Throws InvalidArgument naming the first option that cannot be, wherever the ranks are.
void check_options(const LowLatencyOptions& options, uint32_t ranks);

/// Both throw InvalidArgument naming sms; `rank`: whose it is, if it may be another's. Unless a
/// call may have so many blocks:
void require_sms(const Plan& plan, uint32_t sms, std::optional<uint32_t> rank = std::nullopt);
/// Unless so many have the shared memory that a dispatch takes:
void require_shared_memory(const Plan& plan, Part part, uint32_t sms,
                           std::optional<uint32_t> rank = std::nullopt);

/// Collective: throws on all ranks alike. Unsupported if some rank cannot load from and store to
/// all others; InvalidArgument naming the first option in which a rank differs from rank 0, that
/// cannot be, or that does not fit on some rank's device.
void agree_on_options(World& world, const LowLatencyOptions& options);

}  // namespace tokenyard::low_latency
