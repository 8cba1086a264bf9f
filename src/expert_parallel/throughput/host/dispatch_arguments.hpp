/// Arguments of dispatches, checked before anything is launched.
#pragma once

#include "expert_parallel/throughput/host/route_state.hpp"
#include "expert_parallel/throughput/host/setup.hpp"

namespace tokenyard::throughput {

/// Throws InvalidArgument naming the first argument that a dispatch cannot have.
void check_dispatch(const Setup& setup, const DispatchInput& input);
/// Throws InvalidArgument likewise; a known route brings its tokens, experts and weights, and its
/// places.
void check_dispatch_again(const Setup& setup, const DispatchInput& input,
                          const Route::State& route);

}  // namespace tokenyard::throughput
