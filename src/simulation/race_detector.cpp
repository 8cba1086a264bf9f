#include "simulation/race_detector.hpp"

#include <algorithm>
#include <bit>

namespace tokenyard::simulation {
namespace {

uint16_t mask_of(size_t first, size_t bytes) {
  return static_cast<uint16_t>(((1u << bytes) - 1) << first);
}

/// Calls `body(cell, mask, address of the cell)` for each cell that the bytes touch.
template <class Body>
void for_each_cell(Region& region, const void* at, uint32_t bytes, Body body) {
  size_t offset = static_cast<size_t>(static_cast<const std::byte*>(at) - region.base);
  const size_t end = offset + bytes;
  while (offset < end) {
    const size_t first = offset % kCellBytes;
    const size_t here = std::min(end - offset, kCellBytes - first);
    body(region.cell(offset), mask_of(first, here), region.base + (offset - first));
    offset += here;
  }
}

}  // namespace

void RaceDetector::access(Region& region, const void* at, uint32_t bytes, const Access& access,
                          const ThreadState& me) {
  for_each_cell(region, at, bytes, [&](Cell& cell, uint16_t mask, const std::byte* address) {
    if (!harmless(cell.records, mask, access)) compare(cell.records, mask, access, me, address);
    remember(cell.records, mask, access, me);
  });
}

/// Returns whether all records are strong accesses to exactly these bytes with scopes that include
/// each other: then none can race, and no record needs to be compared.
bool RaceDetector::harmless(const Records& records, uint16_t mask, const Access& access) const {
  if (records.list.empty()) return true;
  if (!strong(access.kind) || records.weak) return false;
  if (records.masks_differ || records.mask != mask) return false;
  const Scope narrowest = std::min(records.narrowest, access.scope);
  if (narrowest == Scope::sys) return true;
  return narrowest == Scope::gpu && !records.devices_differ &&
         records.device == actors_[access.actor].place.device();
}

void RaceDetector::compare(const Records& records, uint16_t mask, const Access& access,
                           const ThreadState& me, const std::byte* cell) {
  for (const Record& record : records.list) {
    const auto both = static_cast<uint16_t>(record.mask & mask);
    if (both == 0) continue;
    const Access& earlier = record.access;
    if (!writes(earlier.kind) && !writes(access.kind)) continue;
    if (ordered(earlier, access, me)) continue;
    const bool both_strong = strong(earlier.kind) && strong(access.kind);
    const Place& place = actors_[earlier.actor].place;
    if (both_strong && record.mask == mask &&
        mutually_included(earlier.scope, place, access.scope, me.place))
      continue;
    RaceReason reason = RaceReason::unordered;
    if (both_strong && record.mask == mask) reason = RaceReason::scope;
    const Slot slot = actors_[earlier.actor].slot;
    if (bulk(access.kind) && me.knows(slot, earlier.epoch)) reason = RaceReason::proxy;
    sink_.found({earlier, access, cell + std::countr_zero(both),
                 static_cast<uint32_t>(std::popcount(both)), reason});
  }
}

/// Returns whether `earlier` happens before `later`. An ordinary write is ordered before a bulk
/// copy only with a proxy fence between them; ordinary reads, and awaited copies, need none.
bool RaceDetector::ordered(const Access& earlier, const Access& later,
                           const ThreadState& me) const {
  const Slot slot = actors_[earlier.actor].slot;
  if (bulk(later.kind) && !bulk(earlier.kind) && writes(earlier.kind))
    return me.async.of(slot) >= earlier.epoch;
  return me.knows(slot, earlier.epoch);
}

/// Returns whether every access that races with `earlier` also races with `later`, if `later` is
/// ordered after it: then the earlier record may be dropped.
bool RaceDetector::implies(const Record& later, const Record& earlier) const {
  const Access& old = earlier.access;
  const Access& now = later.access;
  if ((earlier.mask & ~later.mask) != 0) return false;
  if (writes(old.kind) && !writes(now.kind)) return false;
  // The end of a completion's phase does not imply what the copy's issuer knew.
  if (actors_[now.actor].kind == ActorKind::completion && old.actor != now.actor) return false;
  if (bulk(old.kind) != bulk(now.kind) && old.actor == now.actor) return false;
  if (!strong(now.kind)) return true;
  if (!strong(old.kind) || later.mask != earlier.mask) return false;
  if (old.actor == now.actor) return old.scope >= now.scope;
  return old.scope == Scope::sys && now.scope == Scope::sys &&
         actors_[old.actor].place.device() == actors_[now.actor].place.device();
}

void RaceDetector::remember(Records& records, uint16_t mask, const Access& access,
                            const ThreadState& me) {
  const Record fresh{access, mask};
  if (records.list.size() < 8) {
    const size_t before = records.list.size();
    std::erase_if(records.list, [&](const Record& record) {
      return ordered(record.access, access, me) && implies(fresh, record);
    });
    if (records.list.size() != before) summarise(records);
    records.list.push_back(fresh);
    add_to_summary(records, fresh);
    return;
  }
  // A long list, since many threads use these bytes: only this thread's own record is replaced.
  for (Record& record : records.list) {
    if (record.access.actor == access.actor && record.mask == mask &&
        record.access.kind == access.kind && record.access.scope == access.scope) {
      record.access = access;
      return;
    }
  }
  records.list.push_back(fresh);
  add_to_summary(records, fresh);
  if (records.list.size() >= records.prune_at) prune(records, me);
}

/// Drops every record that the newest one implies and is ordered after. No other record can be
/// used for this, since only the newest one's thread state `me` is at hand.
void RaceDetector::prune(Records& records, const ThreadState& me) {
  const Record newest = records.list.back();
  records.list.pop_back();
  std::erase_if(records.list, [&](const Record& record) {
    return ordered(record.access, newest.access, me) && implies(newest, record);
  });
  records.list.push_back(newest);
  records.prune_at = static_cast<uint32_t>(records.list.size()) * 2 + 8;
  summarise(records);
}

void RaceDetector::summarise(Records& records) const {
  records.weak = records.devices_differ = records.masks_differ = false;
  records.narrowest = Scope::sys;
  records.mask = 0;
  for (const Record& record : records.list) add_to_summary(records, record);
}

void RaceDetector::add_to_summary(Records& records, const Record& record) const {
  const uint32_t device = actors_[record.access.actor].place.device();
  if (records.mask == 0) {
    records.mask = record.mask;
    records.device = device;
  }
  records.weak |= !strong(record.access.kind);
  records.masks_differ |= records.mask != record.mask;
  records.devices_differ |= records.device != device;
  records.narrowest = std::min(records.narrowest, record.access.scope);
}

}  // namespace tokenyard::simulation
