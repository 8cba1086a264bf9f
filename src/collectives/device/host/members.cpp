#include "collectives/device/host/members.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::device_collectives {

Members Members::of(const World& world) {
  Members members{.slots = present_ranks(world), .empty = {}};
  if (members.count() == world.size()) {
    members.self = world.rank();
    return members;
  }
  if (world.size() > EmptySlots::kSlotsMax)
    throw Unsupported("DeviceCollectives",
                      fmt::format("ranks are absent from a world of more than {}: replace them",
                                  EmptySlots::kSlotsMax));
  for (uint32_t slot = 0; slot < world.size(); ++slot)
    if (!is_present(world, slot)) members.empty.bits |= uint64_t{1} << slot;
  members.self = *members.at(world.rank());
  return members;
}

std::optional<uint32_t> Members::at(uint32_t slot) const {
  const auto found = std::ranges::lower_bound(slots, slot);
  if (found == slots.end() || *found != slot) return std::nullopt;
  return static_cast<uint32_t>(found - slots.begin());
}

}  // namespace tokenyard::device_collectives
