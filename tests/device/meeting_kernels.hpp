/// A kernel whose blocks, across all ranks, wait for one another: it ends only if all are resident.
#pragma once

#include "device/device.hpp"

namespace tokenyard::testing {

struct MeetingParams {
  WaitContext wait_context;
  uint32_t* arrived;  ///< [1] shared by all ranks
  uint32_t expected;  ///< blocks of all ranks
  uint32_t rank;
  uint32_t* met;  ///< [blocks] of this rank: rank + 1 if the block met all others, else 0
};

TOKENYARD_DEVICE void meeting_body(const MeetingParams& params) {
  const Deadline deadline = params.wait_context.start();
  if (thread::index() != 0) return;
  add<Order::release, Scope::gpu>(params.arrived, 1);
  Awaited what{.phase = 0, .rank = params.rank, .expected = params.expected};
  const bool met = wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::gpu>(params.arrived);
    return what.seen >= what.expected;
  });
  params.met[block::index()] = met ? params.rank + 1 : 0;
}

/// Does nothing; a second kernel, for launches that must not match.
TOKENYARD_DEVICE void idle_body(const MeetingParams&) {}

TOKENYARD_DEFINE_KERNEL(meeting_kernel, meeting_body, MeetingParams, NoShared, 64)
TOKENYARD_DEFINE_KERNEL(idle_kernel, idle_body, MeetingParams, NoShared, 64)

}  // namespace tokenyard::testing
