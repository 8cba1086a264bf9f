/// Checks on calls' arguments before anything is launched. All throw InvalidArgument.
#pragma once

#include "expert_parallel/low_latency/host/batch.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"

namespace tokenyard::low_latency {

void check_input(const Setup& setup, const LowLatencyInput& input);
/// Throws if rows in this format could not be received.
void require_format(const Setup& setup, LowLatencyRows rows);
void check_combine(const Setup& setup, const LowLatencyCombine& what,
                   const LowLatencyHandle& handle);
/// Returns the number of blocks of the call.
uint32_t check_call(const Setup& setup, const LowLatencyCall& call);
void check_dispatch_call(const Setup& setup, const LowLatencyCall& call, uint32_t blocks);

}  // namespace tokenyard::low_latency
