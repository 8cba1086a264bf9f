/// The kernels of network_kernels.hpp, for one file per program.
#pragma once

#include "fabric/network_kernels.hpp"

namespace tokenyard::testing {

TOKENYARD_DEFINE_KERNEL(network_shared_kernel, network_shared, SharedParams, NoShared,
                        kSharers * 32)
TOKENYARD_DEFINE_KERNEL(network_exchange_kernel, network_exchange, NetworkParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(network_reuse_kernel, network_reuse, NetworkParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(network_rings_kernel, network_rings, NetworkParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(network_request_kernel, network_request, RequestParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(network_await_kernel, network_await, AwaitParams, NoShared, 32)

}  // namespace tokenyard::testing
