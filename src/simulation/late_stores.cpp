#include "simulation/late_stores.hpp"

#include <cstring>

namespace tokenyard::simulation {
namespace {

bool overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

void LateStores::add(Region& region, void* to, const void* value, uint32_t bytes,
                     const ThreadState& me, const Chance& chance) {
  auto* const at = static_cast<std::byte*>(to);
  const auto* const from = static_cast<const std::byte*>(value);
  if (bytes == 16 && chance.random.chance(chance.policy.tear_per_1024)) {
    for (uint32_t piece = 0; piece < 16; piece += 4)
      add_piece(region, at + piece, from + piece, 4, me);
  } else {
    add_piece(region, at, from, bytes, me);
  }
}

void LateStores::add_piece(Region& region, std::byte* to, const std::byte* value, uint32_t bytes,
                           const ThreadState& me) {
  if (me.slot >= queues_.size()) queues_.resize(me.slot + 1);
  Queue& queue = queues_[me.slot];
  if (queue.stores.empty()) active_.push_back(me.slot);
  queue.rank = me.place.rank;
  Store store{};
  store.region = &region;
  store.to = to;
  std::memcpy(store.value.data(), value, bytes);
  store.bytes = static_cast<uint8_t>(bytes);
  store.epoch = me.epoch;
  store.number = issued_++;
  queue.stores.push_back(store);
  ++region.cell(static_cast<size_t>(to - region.base)).late;
}

void LateStores::finish(Store& store, bool really) {
  if (really) std::memcpy(store.to, store.value.data(), store.bytes);
  --store.region->cell(static_cast<size_t>(store.to - store.region->base)).late;
  store.landed = true;
}

/// Lands one store, after its thread's older stores to the same bytes.
void LateStores::land(Queue& queue, size_t index) {
  Store& wanted = queue.stores[index];
  if (wanted.region->cell(static_cast<size_t>(wanted.to - wanted.region->base)).late > 1) {
    for (size_t older = 0; older < index; ++older) {
      Store& store = queue.stores[older];
      if (!store.landed && overlap(store.to, store.bytes, wanted.to, wanted.bytes)) {
        finish(store, true);
        ++queue.landed;
      }
    }
  }
  finish(wanted, true);
  ++queue.landed;
}

void LateStores::retire(size_t active_index) {
  Queue& queue = queues_[active_[active_index]];
  queue.stores.clear();
  queue.landed = 0;
  active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(active_index));
}

void LateStores::land_covered(const ThreadState& me) {
  for (size_t index = 0; index < active_.size();) {
    const Slot slot = active_[index];
    Queue& queue = queues_[slot];
    const Epoch covered = slot == me.slot ? 0 : me.known.of(slot);
    // Epochs in a queue never decrease, so the covered stores are a prefix.
    size_t end = 0;
    for (; end < queue.stores.size() && queue.stores[end].epoch <= covered; ++end) {
      if (queue.stores[end].landed) continue;
      finish(queue.stores[end], true);
      ++queue.landed;
    }
    if (queue.landed == queue.stores.size()) {
      retire(index);
      continue;
    }
    if (end > 0) {
      queue.stores.erase(queue.stores.begin(),
                         queue.stores.begin() + static_cast<std::ptrdiff_t>(end));
      queue.landed -= end;
    }
    ++index;
  }
}

void LateStores::land_own(Region& region, const void* at, uint32_t bytes, const ThreadState& me) {
  if (me.slot >= queues_.size() || queues_[me.slot].stores.empty()) return;
  const auto* const begin = static_cast<const std::byte*>(at);
  const auto first = static_cast<size_t>(begin - region.base);
  uint32_t late = 0;
  for (size_t offset = first / kCellBytes * kCellBytes; offset < first + bytes;
       offset += kCellBytes)
    late += region.cell(offset).late;
  if (late == 0) return;
  Queue& queue = queues_[me.slot];
  for (Store& store : queue.stores) {
    if (store.landed || !overlap(store.to, store.bytes, begin, bytes)) continue;
    finish(store, true);
    ++queue.landed;
  }
}

bool LateStores::clogged(const Queue& queue, const Store& store, const Policy& policy) const {
  return policy.delivery == Delivery::clogged && queue.rank == policy.clogged_from &&
         store.region->rank == policy.clogged_to;
}

bool LateStores::step(bool idle, const Chance& chance) {
  if (active_.empty()) return false;
  const bool lazy = chance.policy.delivery == Delivery::newest_first ||
                    chance.policy.delivery == Delivery::random_idle;
  if (!idle && (lazy || !chance.random.chance(chance.policy.land_per_1024))) return false;
  // An idle world lands a handful at a time: few enough to find bugs, enough to make progress.
  bool landed = land_some(idle, chance);
  for (uint32_t more = idle ? chance.random.below(8) : 0; more > 0 && !active_.empty(); --more)
    landed |= land_some(idle, chance);
  return landed;
}

bool LateStores::land_some(bool idle, const Chance& chance) {
  size_t active = chance.random.below(static_cast<uint32_t>(active_.size()));
  if (chance.policy.delivery == Delivery::newest_first) {
    for (size_t index = 0; index < active_.size(); ++index)
      if (queues_[active_[index]].stores.back().number >
          queues_[active_[active]].stores.back().number)
        active = index;
  }
  Queue& queue = queues_[active_[active]];
  if (queue.landed == queue.stores.size()) {  // Accesses by its thread have landed all of them.
    retire(active);
    return true;
  }
  size_t index = queue.stores.size() - 1;
  if (chance.policy.delivery != Delivery::newest_first)
    index = chance.random.below(static_cast<uint32_t>(queue.stores.size()));
  while (queue.stores[index].landed) index = index == 0 ? queue.stores.size() - 1 : index - 1;
  if (!idle && clogged(queue, queue.stores[index], chance.policy)) return false;
  land(queue, index);
  while (!queue.stores.empty() && queue.stores.back().landed) {
    queue.stores.pop_back();
    --queue.landed;
  }
  if (queue.stores.empty()) retire(active);
  return true;
}

void LateStores::stop(uint32_t rank, InFlight fate, Random& random) {
  for (size_t index = 0; index < active_.size();) {
    Queue& queue = queues_[active_[index]];
    if (queue.rank != rank) {
      ++index;
      continue;
    }
    for (Store& store : queue.stores)
      if (!store.landed)
        finish(store, fate == InFlight::land || (fate == InFlight::tear && random.chance(512)));
    retire(index);
  }
}

}  // namespace tokenyard::simulation
