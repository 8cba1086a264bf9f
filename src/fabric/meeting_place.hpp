/// Where the processes of a job meet that is made for one world.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tokenyard/world.hpp"

namespace tokenyard {

/// A store that rank 0 serves at host:port.
struct MeetingPlace {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  uint32_t rank = 0, size = 1;
  uint32_t local_rank = 0;        ///< selects the GPU
  std::string job = "tokenyard";  ///< jobs with other names stay apart
  /// Empty: that of TOKENYARD_SECRET_FILE or TOKENYARD_SECRET, else of this user's processes on
  /// this host.
  std::string secret = {};
  std::string host_name = {};  ///< see JobOptions::host
};

/// Makes a job of one process per rank, and a world of it, with which it ends. Its witness is
/// memory that the ranks of one host share, so that it outlives rank 0. Blocks until all ranks have
/// come. Throws PeerTimeout naming a missing rank, Unsupported naming ranks that cannot be
/// connected.
std::unique_ptr<World> connect_world(const MeetingPlace& where, const std::string& device,
                                     const WorldOptions& options = {});

}  // namespace tokenyard
