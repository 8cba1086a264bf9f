/// Checks on calls' arguments before anything is launched. All throw InvalidArgument.
#pragma once

#include "expert_parallel/low_latency/host/batch.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"

namespace tokenyard::low_latency {

/// A LowLatencyInput whose arrays are what the call needs: from here on addresses are enough.
struct DispatchArguments {
  const std::byte* x = nullptr;    ///< [tokens, hidden] BF16, with `scales` E4M3
  const void* scales = nullptr;    ///< [tokens, scale words of the format], or null
  const void* topk_idx = nullptr;  ///< [tokens, topk] int64 or int32
  bool idx_is_int64 = true;
  const float* topk_weights = nullptr;  ///< [tokens, topk], or null
  uint32_t tokens = 0;
  LowLatencyRows rows = LowLatencyRows::fp8;
};

DispatchArguments checked_input(const Setup& setup, const LowLatencyInput& input);
/// Throws if rows in this format could not be received.
void require_format(const Setup& setup, LowLatencyRows rows);
void check_combine(const Setup& setup, const LowLatencyCombine& what,
                   const LowLatencyHandle& handle);
/// Returns the number of blocks of the call.
uint32_t check_call(const Setup& setup, const LowLatencyCall& call);
void check_dispatch_call(const Setup& setup, const LowLatencyCall& call, uint32_t blocks);

}  // namespace tokenyard::low_latency
