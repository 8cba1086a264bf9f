/// Combine across hosts, in one launch. See across_hosts.hpp for the roles.
///
///     ranks of a host          rail peer of the source there       source
///     results       <-- load/store -- adds them in rank order,
///                                     rounds once
///                                     a partial ==== slots ====>   its ring
///                                               <=== credits ===   adds biases, its own host's
///                                                                  results and the partials in
///                                                                  host order, rounds once
///
/// Partials come in the order of the source's tokens, as their rows went. Sums are fp32. Each
/// result of another host is thus rounded once more than inside a host, with the sum of its host,
/// unless partials travel as fp32. Weights, which are summed likewise, are not rounded.
#pragma once

#include "device/kernel.hpp"
#include "expert_parallel/internode/kernels/across_hosts.hpp"
#include "expert_parallel/throughput/kernels/combine.hpp"

namespace tokenyard::internode {

struct CombineParams {
  /// As inside a host, but for preparation, order, groups and stages, which are not used: all rows
  /// can be read from the start.
  throughput::CombineParams combine;
  Rails rails;
  RailRoute route;
  uint32_t forwarders;  ///< warps of a block that sum for other hosts first; the others add first
  bool wide;            ///< partials are fp32, although rows are narrower
};

/// The block's shared memory behind RailShared.
struct CombineTail {
  uint32_t ranks;
  std::byte* base = nullptr;

  TOKENYARD_HOST_DEVICE throughput::ReadyWords ready_words() const {
    return {reinterpret_cast<uint32_t*>(base), ranks};
  }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const {
    return throughput::kReadyWords * ranks * uint32_t{sizeof(uint32_t)};
  }
};

TOKENYARD_DECLARE_KERNEL(combine_kernel, CombineParams);

}  // namespace tokenyard::internode
