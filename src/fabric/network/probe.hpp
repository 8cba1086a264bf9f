/// Measures a network between two ranks, one thread on each: round trips of a put of 8 bytes with
/// its signal, then the rate of long puts, first from the one rank, then from the other.
#pragma once

#include <array>
#include <string>

#include "device/device.hpp"
#include "device/network.hpp"

namespace tokenyard {

inline constexpr uint32_t kProbeTurns = 64;
inline constexpr uint32_t kProbePutBytes = 1 << 20;

struct ProbeResult {
  uint64_t turn_ns[kProbeTurns];  ///< of the rank that begins
  uint64_t turns;                 ///< that are over
  uint64_t puts, puts_ns;         ///< long puts of this rank, until the other one has seen them
};

struct ProbeParams {
  WaitContext wait_context;
  NetworkQueues queues;
  uint32_t rank, peer;  ///< the lower one begins; the same: there is nothing to do
  uint32_t queue;
  NetworkTarget room;       ///< at the peer, of kProbePutBytes
  NetworkTarget word;       ///< at the peer
  NetworkSource source;     ///< kProbePutBytes of this rank
  const uint64_t* arrived;  ///< this rank's word, 0 before
  ProbeResult* result;
};
TOKENYARD_DECLARE_KERNEL(probe_kernel, ProbeParams);

/// Names of the kernel's waits.
inline const std::array<std::string, 2> kProbePhases = {"doctor: post to a peer",
                                                        "doctor: put and signal of a peer"};

}  // namespace tokenyard
