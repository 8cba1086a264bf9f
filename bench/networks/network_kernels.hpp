/// Kernels that measure a network: they post and poll without giving their core away.
#pragma once

#include "device/bulk.hpp"
#include "device/device.hpp"
#include "device/network.hpp"

namespace tokenyard::bench {

struct PingParams {
  WaitContext wait_context;
  NetworkQueues queues;
  uint32_t peer, queue;
  bool first;  ///< whether this rank begins each turn
  bool spins;  ///< polls without pause; else as kernels wait
  uint32_t turns;
  NetworkTarget target, flag;  ///< at the peer
  NetworkSource source;        ///< no bytes: none is put
  const uint64_t* word;        ///< this rank's, which the peer signals
  uint64_t seen;               ///< the word's value before
  uint64_t* took_ns;           ///< [turns] of the rank that begins
};
TOKENYARD_DECLARE_KERNEL(ping_kernel, PingParams);

struct RequestsParams {
  WaitContext wait_context;
  NetworkQueues queues;
  uint32_t count;                 ///< per warp
  bool flushes_each;              ///< posts the next one once the one before has completed
  uint64_t *begun_ns, *ended_ns;  ///< [warps]
};
TOKENYARD_DECLARE_KERNEL(requests_kernel, RequestsParams);

struct CopyParams {
  const std::byte* from;
  std::byte* to;
  uint32_t rows, row_bytes;
};
inline constexpr uint32_t kCopyWarps = 15;  ///< at most
struct CopyShared {
  Completion full[kCopyWarps];
};
TOKENYARD_DECLARE_KERNEL(copy_kernel, CopyParams);

}  // namespace tokenyard::bench
