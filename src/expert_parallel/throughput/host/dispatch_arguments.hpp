/// Checks on a dispatch's arguments before anything is launched.
#pragma once

#include "expert_parallel/throughput/host/route_state.hpp"
#include "expert_parallel/throughput/host/setup.hpp"

namespace tokenyard::throughput {

/// Throws InvalidArgument naming the first invalid argument of a dispatch.
void check_dispatch(const Setup& setup, const DispatchInput& input);
/// Does the same for a dispatch on a known route, which already has its tokens, experts, weights
/// and places.
void check_dispatch_again(const Setup& setup, const DispatchInput& input,
                          const Route::State& route);

}  // namespace tokenyard::throughput
