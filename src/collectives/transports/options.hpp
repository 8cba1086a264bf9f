/// What a WireTransport wants to know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "collectives/interfaces/words.hpp"

namespace tokenyard::collectives {

struct WireOptions {
  Member self;
  std::string job = "tokenyard";
  std::string secret;
  std::string host;  ///< ranks with equal names share memory; empty: default_host()
  /// Where others reach this rank, a number or a name; empty: own_address of no target.
  std::string address;
  bool force_tcp = false;  ///< no shared memory, even on one host; the same on all ranks
  /// A plug-in that carries what would go over TCP (interconnect.hpp): a path, or a name as the
  /// system's loader looks for it; empty: none. The same on all ranks.
  std::string interconnect = {};

  /// Of one direction, rounded up to a power of two. A pair's channel takes twice as much.
  size_t ring_bytes = 512 << 10;
  size_t point_to_point_ring_bytes = 128 << 10;
  bool offer = true;  ///< large parts of collectives go past the rings where the system lets them

  /// A stream over TCP changes sockets after so many bytes, so that a large message keeps several
  /// of them busy. Who opens the channel decides for both ends.
  uint32_t stripes = 2;
  size_t stripe_bytes = 1 << 20;
  int socket_buffer_bytes = 0;  ///< 0: the system's own choice, which grows with need
};

}  // namespace tokenyard::collectives
