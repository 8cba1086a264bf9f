#include "simulation/region.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tokenyard/error.hpp"

namespace tokenyard::simulation {

Region& Regions::add(std::string name, void* base, size_t bytes, uint32_t rank) {
  auto* const begin = static_cast<std::byte*>(base);
  if (reinterpret_cast<uintptr_t>(base) % kCellBytes != 0)
    throw InternalError(fmt::format("region {} is not 16-byte aligned", name));
  recent_ = {};
  const auto place =
      std::lower_bound(sorted_.begin(), sorted_.end(), begin,
                       [](const auto& region, std::byte* at) { return region->base < at; });
  if ((place != sorted_.end() && (*place)->base < begin + bytes) ||
      (place != sorted_.begin() && (*std::prev(place))->base + (*std::prev(place))->bytes > begin))
    throw InternalError(fmt::format("region {} overlaps another", name));
  auto region = std::make_unique<Region>();
  region->name = std::move(name);
  region->base = begin;
  region->bytes = bytes;
  region->rank = rank;
  region->number = added_++;
  region->pages.resize((bytes + Region::kPageBytes - 1) / Region::kPageBytes);
  return **sorted_.insert(place, std::move(region));
}

void Regions::remove(void* base) {
  Region* const region = find(base);
  if (region == nullptr || region->base != base)
    throw InternalError("remove of a region that was never added");
  region->alive = false;
}

void Regions::forget(void* base) {
  std::erase_if(sorted_, [&](const auto& region) { return region->base == base; });
  recent_ = {};
}

Region* Regions::search(const std::byte* address) {
  auto after =
      std::upper_bound(sorted_.begin(), sorted_.end(), address,
                       [](const std::byte* at, const auto& region) { return at < region->base; });
  Region* const region = after == sorted_.begin() ? nullptr : std::prev(after)->get();
  Found& recent = recent_[entry(address)];
  if (region != nullptr && address < region->base + region->bytes)
    recent = {region->base, region->base + region->bytes, region};
  else
    recent = {region == nullptr ? nullptr : region->base + region->bytes,
              after == sorted_.end() ? address + 1 : (*after)->base, nullptr};
  return recent.region;
}

std::string Regions::describe(const void* address) {
  const Region* const region = find(address);
  if (region == nullptr) return fmt::format("{}", address);
  const auto offset = static_cast<const std::byte*>(address) - region->base;
  return fmt::format("{} + {:#x}{}", region->name, offset, region->alive ? "" : " (freed)");
}

}  // namespace tokenyard::simulation
