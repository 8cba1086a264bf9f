/// Connects a rank with its peers and makes the transport between them. Ranks exchange its cards
/// over the job's links.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/network/gpu_export.hpp"
#include "fabric/proxy/transport.hpp"

namespace tokenyard {

/// The rank for which a transport is made.
struct TransportPlace {
  uint32_t rank, ranks;
  uint32_t epoch;       ///< of the world
  std::string secret;   ///< of the job
  std::string address;  ///< of this rank's network card, if it is known
  uint32_t queues;      ///< per peer
  /// How long a path may have bytes to send and move none before others take over.
  std::chrono::nanoseconds stall = std::chrono::seconds(1);
  /// The GPU whose memory it should take; null: there is none, or none is wanted.
  std::shared_ptr<const GpuExport> gpu = {};
};

/// A rank's bytes for its peers; empty for an absent one.
using TransportCards = std::vector<std::vector<std::byte>>;

class TransportMaker {
 public:
  virtual ~TransportMaker() = default;
  /// Returns the transport's name. Ranks with different ones cannot be connected.
  virtual std::string name() const = 0;
  /// Returns what peers must know of this rank.
  virtual std::vector<std::byte> card() const = 0;
  /// Sets the other ranks to connect with, `reached` [ranks]. Throws, alike on all ranks, an
  /// InvalidArgument that names a rank.
  virtual void begin(const TransportCards& cards, const std::vector<bool>& reached) = 0;
  /// Throws InvalidArgument, before any wait, if this process lacks what the connections need.
  virtual void check_limits() const {}
  /// Makes progress; returns whether all peers are connected. Throws OsError.
  virtual bool step(TimePoint now) = 0;
  /// Returns what is missing of a peer, and why, as the end of a sentence about this rank.
  virtual std::optional<std::string> missing() const = 0;
  /// Returns why it takes no memory of `TransportPlace::gpu`; empty: it does.
  virtual std::string why_no_gpu_memory() const { return "the processor receives over " + name(); }
  /// Returns how a peer is reached, for people.
  virtual std::string way(uint32_t rank) const = 0;
  /// Called once, when all peers are connected.
  virtual std::unique_ptr<Transport> make() = 0;
};

}  // namespace tokenyard
