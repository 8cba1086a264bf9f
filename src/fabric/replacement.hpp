/// The steps by which new processes take the places of a world's lost ranks. The world's ranks are
/// processes of a job; who starts new ones is the caller's affair.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabric/meeting_place.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// Has the members of the job agree to go on without these ranks, and without any that are gone, as
/// World::rebuild does. Returns the ranks that have lost their place, each with the number of the
/// process that held it: alike on all survivors. May be called again. Throws what World::rebuild
/// throws.
std::map<uint32_t, uint64_t> leave_out(World& world, const std::vector<uint32_t>& ranks);

/// Waits until new processes hold the places of these ranks, and returns a world of the same ranks.
/// Collective among the survivors and the new processes. May be called again after a failure.
/// Throws PeerTimeout naming a rank that has not come after `timeout`, or what Job::world throws.
std::unique_ptr<World> refill(World& world, const std::vector<uint32_t>& ranks, size_t arena_bytes,
                              std::chrono::nanoseconds timeout);

/// As a new process, joins the job of connect_world in a lost rank's place, and returns its end of
/// the world that `refill` returns. `slots`: [ranks of that world] the place of each in the job;
/// `rank` and `size` of `where` are the job's. Throws what connect_world throws.
std::unique_ptr<World> connect_as_replacement(const MeetingPlace& where,
                                              const std::vector<uint32_t>& slots,
                                              const std::string& device,
                                              const WorldOptions& options);

}  // namespace tokenyard
