/// Runs a local setup step that every rank must complete: if it fails on one rank, it fails on all
/// of them at once, with that rank's reason. A rank that failed alone would leave the others
/// waiting until their deadline.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "fabric/arena.hpp"
#include "fabric/bootstrap.hpp"

namespace tokenyard {

class World;

/// Collective. Returns [ranks] the result of `step` on each, empty for an absent rank. If `step`
/// threw on some ranks, throws on all ranks for the lowest of them: InvalidArgument with its fields
/// and the rank, for an InvalidArgument; OsError, whose call names the rank, for an OsError or
/// exhausted memory; Unsupported{what} for another Error. Also throws what all_gather throws.
std::vector<std::vector<std::byte>> collective_step(
    Bootstrap& bootstrap, const std::string& what, TimePoint until,
    const std::function<std::vector<std::byte>()>& step);

/// The same for a step that returns nothing.
template <std::invocable Step>
  requires std::is_void_v<std::invoke_result_t<Step>>
void collective_step(Bootstrap& bootstrap, const std::string& what, TimePoint until, Step step) {
  collective_step(bootstrap, what, until, [&] {
    step();
    return std::vector<std::byte>();
  });
}

/// The same for a step of the ranks of a world, within its timeout.
void collective_step(World& world, const std::string& what, const std::function<void()>& step);

/// Takes part, as a rank that has nothing to do, in a step of others. Throws as they do.
inline void accompany_step(World& world, const std::string& what) {
  collective_step(world, what, [] {});
}

/// Collective. Returns a block of this rank's arena, of a size of its own, once every rank has
/// one. If some arena has no room, throws on all ranks InvalidArgument{arena_bytes} that names the
/// rank, the bytes that it needs and those that it has.
ArenaBlock allocate_on_all(World& world, size_t bytes, const std::string& what,
                           ArenaEnd end = ArenaEnd::lower);

}  // namespace tokenyard
