#include "simulation/actor.hpp"

#include <fmt/format.h>

namespace tokenyard::simulation {

std::string describe(const Actor& actor) {
  const simt::ThreadName& name = actor.name;
  if (actor.kind == ActorKind::host) return fmt::format("{} of rank {}", actor.label, name.rank);
  const std::string thread = fmt::format("thread {} (warp {}) of block {} of rank {}", name.thread,
                                         name.thread / 32, name.block, name.rank);
  if (actor.kind == ActorKind::thread) return thread;
  if (actor.kind == ActorKind::completion)
    return fmt::format("bulk loads in block {} of rank {}", name.block, name.rank);
  return fmt::format("bulk stores of {}", thread);
}

}  // namespace tokenyard::simulation
