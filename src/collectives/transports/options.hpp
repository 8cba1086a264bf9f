/// Options of a WireTransport.
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
  /// Where others reach this rank, an IP address or a name; empty: net::own_address().
  std::string address;
  bool force_tcp = false;  ///< no shared memory, even on one host; the same on all ranks

  /// Bytes per direction, rounded up to a power of two. A pair's channel takes twice as much.
  size_t ring_bytes = 512 << 10;
  size_t point_to_point_ring_bytes = 128 << 10;
  bool offer = true;  ///< large parts of collectives may use single-copy transfers

  /// A stream over TCP switches sockets after `stripe_bytes`, so that a large message keeps several
  /// of them busy. The initiator of a channel decides for both ends.
  uint32_t stripes = 2;
  size_t stripe_bytes = 1 << 20;
  int socket_buffer_bytes = 0;  ///< 0: the system's default, which grows with need
};

}  // namespace tokenyard::collectives
