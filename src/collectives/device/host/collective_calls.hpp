/// Calls whose messages are all of one size: the choice of a protocol, and its launches.
#pragma once

#include "collectives/device/host/session.hpp"

namespace tokenyard::device_collectives {

struct PieceBlocks;

class CollectiveCalls {
 public:
  explicit CollectiveCalls(Session& session) : session_(session) {}

  /// `request`: without this rank and the number of ranks.
  void start(const Request& request, const Call& call);

 private:
  void launch(const Request& request, CallParams params, const Call& call);
  /// Returns the member that is the root. Throws OperationAborted if its slot is empty.
  uint32_t member_at(const Request& request) const;
  Protocol protocol_for(const Request& request, const Movement& movement, const Call& call) const;
  bool in_arena(const void* data, uint64_t bytes) const;
  PieceBlocks blocks_of_pieces(uint64_t bytes, uint32_t piece_bytes, const Call& call) const;
  void launch_slots(const CallParams& params, const Call& call);
  void launch_packets(const CallParams& params, const Call& call);
  void launch_rings(const CallParams& params, const Call& call);
  void launch_large_all_reduce(CallParams params, const Call& call);
  void launch_direct(const CallParams& params, const Call& call);

  Session& session_;
};

}  // namespace tokenyard::device_collectives
