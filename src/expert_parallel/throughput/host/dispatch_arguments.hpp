/// Checks on a dispatch's arguments before anything is launched.
#pragma once

#include <optional>

#include "expert_parallel/throughput/host/route_state.hpp"
#include "expert_parallel/throughput/host/setup.hpp"

namespace tokenyard::throughput {

/// A DispatchInput whose arrays are what the call needs: from here on addresses are enough.
struct DispatchArguments {
  const void* x = nullptr;         ///< [tokens, row bytes of `format`]
  const void* topk_idx = nullptr;  ///< [tokens, topk] int64 or int32; null on a known route
  bool idx_is_int64 = true;
  const float* topk_weights = nullptr;  ///< [tokens, topk], or null
  uint32_t tokens = 0;
  RowFormat format = {};
  const void* scales = nullptr;  ///< [tokens, format.scale_words]
  CastToFp8 cast = {};
  uint32_t received_tokens_max = 0;
  std::optional<Stream> watcher = {};
  uint32_t sms = 0;
  bool comes_again = false;
};

/// Throws InvalidArgument naming the first invalid argument of a dispatch.
DispatchArguments checked_dispatch(const Setup& setup, const DispatchInput& input);
/// Does the same for a dispatch on a known route, which already has its tokens, experts, weights
/// and places.
DispatchArguments checked_dispatch_again(const Setup& setup, const DispatchInput& input,
                                         const Route::State& route);

}  // namespace tokenyard::throughput
