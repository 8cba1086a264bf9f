/// The calls by which a network makes and uses a communicator of NCCL. The plug-in implements them
/// with NCCL (nccl/), tests without.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/accelerator.hpp"
#include "fabric/network/simulated_network.hpp"
#include "gin/card.hpp"

namespace tokenyard::gin {

/// Names a communicator that ranks join.
using CommunicatorId = std::array<std::byte, 128>;

/// A rank's part of a communicator.
struct CommunicatorPlace {
  CommunicatorId id;
  uint32_t member, members;  ///< this rank among those that join, and their number
  int device = -1;           ///< CUDA's number of the GPU
  std::byte* arena = nullptr;
  size_t arena_bytes = 0;
  uint32_t queues_per_peer = 0;
  /// A member is connected with those whose numbers differ by a multiple of this: 1, or the ranks
  /// per host, which are consecutive then.
  uint32_t stride = 1;
  int traffic_class = -1;  ///< -1: NCCL's
};

/// A communicator whose window is the arena. Its destructor ends it without a word to the others,
/// whose requests to this rank then fail or are dropped.
class GinCommunicator {
 public:
  virtual ~GinCommunicator() = default;
  /// Goes on with joining, which is collective. Returns whether this rank has joined. Never blocks
  /// for long. Throws OsError or Unsupported.
  virtual bool join() = 0;
  /// Returns the way that NCCL goes, as text for the topology.
  virtual std::string way() const = 0;
  /// Runs the card's kernel once, and returns when it has ended.
  virtual void run(const LaunchShape& shape, const CardParams& params) = 0;
  /// Starts the kernel, for which nothing may wait, and which runs until it is stopped. Null where
  /// that cannot be: `run` is called, again and again, by a thread.
  virtual std::unique_ptr<Aside> start(const LaunchShape&, const CardParams&) { return nullptr; }
  /// Returns what NCCL says of an error of its own, which ends all traffic; empty: there is none.
  virtual std::string error() = 0;
};

class GinDriver {
 public:
  virtual ~GinDriver() = default;
  /// Throws Unsupported if ranks whose kernels this accelerator runs cannot be connected: NCCL is
  /// missing, or of another version than the card's code.
  virtual void check(const Accelerator& accelerator) = 0;
  /// Returns the version of NCCL that runs; 0 if it does not matter. Ranks with different ones are
  /// not connected.
  virtual uint32_t version() const { return 0; }
  virtual CommunicatorId make_id() = 0;
  virtual std::unique_ptr<GinCommunicator> communicator(const CommunicatorPlace& place) = 0;
};

}  // namespace tokenyard::gin
