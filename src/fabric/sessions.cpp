#include "fabric/sessions.hpp"

#include <fmt/format.h>

#include "fabric/arena.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

void refuse_arena_of_before(const char* argument, const void* data,
                            const std::vector<std::weak_ptr<World>>& gone, const World& now) {
  const auto* const byte = static_cast<const std::byte*>(data);
  for (const auto& weak : gone) {
    const std::shared_ptr<World> before = weak.lock();
    if (!before) continue;
    const Arena& arena = arena_of(*before);
    if (byte < arena.base() || byte >= arena.base() + arena.capacity()) continue;
    throw InvalidArgument(
        argument,
        fmt::format("memory of your own, or of the arena of epoch {}: copy what you keep of an "
                    "arena before its ranks change",
                    membership_epoch_of(now)),
        fmt::format("memory of the arena of epoch {}", membership_epoch_of(*before)));
  }
}

void refuse_capture(const World& world, Stream stream) {
  if (accelerator_of(world).captures(stream))
    throw InvalidArgument("stream",
                          "one that is not captured, for the first call since the ranks have "
                          "changed: make a call before the capture",
                          "one that is captured into a CUDA graph");
}

}  // namespace tokenyard
