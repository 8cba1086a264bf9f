// ModelMemory's ordered words: loads, stores, read-modify-writes and fences.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "simt/read_modify_write.hpp"
#include "simulation/model_memory.hpp"

namespace tokenyard::simulation {

using simt::Modify;
using simt::ThreadName;

namespace {

bool acquires(Order order) {
  return order == Order::acquire || order == Order::acq_rel;
}
bool releases(Order order) {
  return order == Order::release || order == Order::acq_rel;
}

const char* name_of(Fence kind) {
  switch (kind) {
    case Fence::acquire:
      return "fence acquire";
    case Fence::release:
      return "fence release";
    case Fence::acq_rel:
      return "fence";
    case Fence::sequential:
      return "fence sc";
  }
  return "?";
}

uint64_t number(const void* value, uint32_t bytes) {
  uint64_t result = 0;
  std::memcpy(&result, value, std::min<size_t>(bytes, sizeof result));
  return result;
}

uint64_t modified(Modify what, uint64_t old, uint64_t operand, uint32_t bytes) {
  if (bytes == 8) return simt::modified(what, old, operand);
  return simt::modified(what, static_cast<uint32_t>(old), static_cast<uint32_t>(operand));
}

}  // namespace

void ModelMemory::mutate(Order& order, Scope& scope, CodeAddress where) {
  if (mutator_ == nullptr) return;
  if (releases(order) && faulty(Fault::release_made_relaxed, where))
    order = order == Order::acq_rel ? Order::acquire : Order::relaxed;
  if (acquires(order) && faulty(Fault::acquire_made_relaxed, where))
    order = order == Order::acq_rel ? Order::release : Order::relaxed;
  if (scope == Scope::sys && order != Order::weak && faulty(Fault::sys_made_gpu, where))
    scope = Scope::gpu;
}

void ModelMemory::record(const char* what, const ThreadState& me, const Region& region,
                         const void* at, const void* value, uint32_t bytes) {
  trace_.event(what, me.actor, region.number,
               static_cast<uint64_t>(static_cast<const std::byte*>(at) - region.base),
               number(value, bytes));
}

/// Returns the history of the location that these bytes are. The same address with another size is
/// another location, to which stores of the first appear through real memory.
History& ModelMemory::history(Region& region, const void* at, uint32_t bytes) {
  auto* const address = region.base + (static_cast<const std::byte*>(at) - region.base);
  Cell& cell = region.cell(static_cast<size_t>(address - region.base));
  for (History* history = cell.histories; history != nullptr; history = history->next_in_cell)
    if (history->address == address && history->bytes == bytes) {
      history->catch_up(chance());
      return *history;
    }
  History& fresh = region.histories.emplace_back();
  fresh.address = address;
  fresh.bytes = bytes;
  fresh.next_in_cell = cell.histories;
  cell.histories = &fresh;
  fresh.catch_up(chance());
  return fresh;
}

void ModelMemory::note_unsettled(History& history) {
  if (history.unsettled || history.messages.size() < 2) return;
  history.unsettled = true;
  unsettled_.push_back(&history);
}

void ModelMemory::join(ThreadState& me, const Release& release) {
  const bool more = me.known.join(release.known);
  me.async.join(release.async);
  if (more) late_.land_known(me);
}

void ModelMemory::acquire(ThreadState& me, const ReleaseRef& release) {
  constexpr size_t kReleaseApart = 64;  // Typical distance of Release objects in memory, in bytes.
  const size_t entry = reinterpret_cast<uintptr_t>(release.get()) / kReleaseApart;
  ReleaseRef& last = me.acquired[entry % me.acquired.size()];
  if (last == release) return;
  last = release;
  join(me, *release);
}

/// Acquires a message's releases. A read observes the store only if the two are morally strong, and
/// synchronises with a release only if release and acquire are morally strong too.
void ModelMemory::acquire(ThreadState& me, const History& history, const Message& message,
                          Order order, Scope scope) {
  if (acquires(order)) {
    std::erase_if(me.observed, [&](const Observed& seen) {
      if (seen.where != &history ||
          !mutually_included(seen.release->scope, seen.release->place, scope, me.place))
        return false;
      acquire(me, seen.release);
      return true;
    });
  }
  if (!mutually_included(message.scope, message.place, scope, me.place)) return;
  for (const ReleaseRef& release : message.releases) {
    if (acquires(order) && mutually_included(release->scope, release->place, scope, me.place)) {
      acquire(me, release);
      continue;
    }
    const bool noted = std::any_of(me.observed.begin(), me.observed.end(), [&](const auto& seen) {
      return seen.release == release && seen.where == &history;
    });
    if (!noted && !me.known.covers(release->known)) me.observed.push_back({&history, release});
  }
}

/// Returns the releases that an acquire of this thread's store synchronises with: the store itself,
/// if it is a release; the fences before it; and this thread's last release here.
std::vector<ReleaseRef> ModelMemory::releases_of(ThreadState& me, History& history, Order order,
                                                 Scope scope) {
  std::vector<ReleaseRef> result;
  auto last = std::find_if(history.last_releases.begin(), history.last_releases.end(),
                           [&](const auto& entry) { return entry.slot == me.slot; });
  if (releases(order)) {
    result.push_back(me.release(scope));
    if (last == history.last_releases.end()) {
      history.last_releases.push_back({me.slot, result.front()});
    } else {
      last->release = result.front();
    }
  } else if (last != history.last_releases.end()) {
    result.push_back(last->release);
  }
  for (const ReleaseRef& fence : me.fences)
    if (fence != nullptr && (!releases(order) || fence->scope > scope)) result.push_back(fence);
  return result;
}

/// Adds the releases of the message that a read-modify-write read. Releases that the same threads
/// may acquire are merged; otherwise the list would grow with each update of a counter.
void ModelMemory::carry_on(std::vector<ReleaseRef>& releases, const Message& read, Scope scope,
                           const ThreadState& me) {
  if (!mutually_included(read.scope, read.place, scope, me.place)) return;
  for (const ReleaseRef& old : read.releases) {
    auto same = std::find_if(releases.begin(), releases.end(), [&](const ReleaseRef& release) {
      return release->scope == old->scope && release->place.rank == old->place.rank &&
             release->place.block == old->place.block;
    });
    if (same == releases.end()) {
      releases.push_back(old);
    } else if (!(*same)->known.covers(old->known)) {
      auto both = std::make_shared<Release>(**same);
      both->known.join(old->known);
      both->async.join(old->async);
      *same = std::move(both);
    }
  }
}

const Message& ModelMemory::strong_load(ThreadState& me, Region& region, const void* from,
                                        void* value, uint32_t bytes, Order order, Scope scope,
                                        CodeAddress where) {
  late_.land_own(region, from, bytes, me);
  History& place = history(region, from, bytes);
  const Message& message = place.read(me, scope, chance());
  std::memcpy(value, message.value.data(), bytes);
  if (!message.releases.empty() || acquires(order)) acquire(me, place, message, order, scope);
  // After the acquire, so that the load itself counts as ordered after the acquired release.
  touch(me, region, from, bytes, AccessKind::strong_read, order, scope, where);
  record("load", me, region, from, value, bytes);
  return message;
}

void ModelMemory::strong_store(ThreadState& me, Region& region, void* to, const void* value,
                               uint32_t bytes, Order order, Scope scope, CodeAddress where) {
  touch(me, region, to, bytes, AccessKind::strong_write, order, scope, where);
  History& place = history(region, to, bytes);
  Message message;
  std::memcpy(message.value.data(), value, bytes);
  message.slot = me.slot;
  message.epoch = me.epoch;
  message.scope = scope;
  message.place = me.place;
  message.born = step_;
  message.where = where;
  message.releases = releases_of(me, place, order, scope);
  place.insert(std::move(message), me, chance());
  note_unsettled(place);
  record("store", me, region, to, value, bytes);
  ++progress_;
}

template <class Update>
void ModelMemory::read_modify_write(ThreadState& me, Region& region, void* at, void* old,
                                    uint32_t bytes, Order order, Scope scope, CodeAddress where,
                                    Update update) {
  late_.land_own(region, at, bytes, me);
  History& place = history(region, at, bytes);
  const size_t index = place.read_for_update(me, chance());
  const Message read = place.messages[index];
  if (old != nullptr) std::memcpy(old, read.value.data(), bytes);
  if (!read.releases.empty() || acquires(order)) acquire(me, place, read, order, scope);

  Message message;
  message.value = read.value;
  if (!update(message.value.data())) {
    place.note(index, me, scope);
    touch(me, region, at, bytes, AccessKind::strong_read, order, scope, where);
    record("load", me, region, at, read.value.data(), bytes);
    return;
  }
  touch(me, region, at, bytes, AccessKind::strong_write, order, scope, where);
  message.slot = me.slot;
  message.epoch = me.epoch;
  message.scope = scope;
  message.place = me.place;
  message.born = step_;
  message.where = where;
  message.atomic_with_previous = true;
  message.releases = releases_of(me, place, order, scope);
  carry_on(message.releases, read, scope, me);
  record("update", me, region, at, message.value.data(), bytes);
  // An update that changes nothing is no progress, or a thread that polls by it never sleeps.
  if (message.value != read.value) ++progress_;
  place.append_after(index, std::move(message));
  note_unsettled(place);
}

// ---- the words ----------------------------------------------------------------------------------

void ModelMemory::load(const ThreadName& name, const void* from, void* value, uint32_t bytes,
                       Order order, Scope scope, CodeAddress where) {
  ++step_;
  ThreadState& me = *running(name).state;
  Region* const region = region_of(from, bytes, me, "a load", where);
  mutate(order, scope, where);
  if (region == nullptr) {
    std::memcpy(value, from, bytes);
  } else if (order == Order::weak) {
    touch(me, *region, from, bytes, AccessKind::weak_read, order, scope, where);
    std::memcpy(value, from, bytes);
  } else {
    strong_load(me, *region, from, value, bytes, order, scope, where);
  }
}

void ModelMemory::store(const ThreadName& name, void* to, const void* value, uint32_t bytes,
                        Order order, Scope scope, CodeAddress where) {
  ++step_;
  ThreadState& me = *running(name).state;
  Region* const region = region_of(to, bytes, me, "a store", where);
  mutate(order, scope, where);
  if (order != Order::weak && faulty(Fault::store_dropped, where)) return;
  if (region == nullptr) {
    std::memcpy(to, value, bytes);
  } else if (order == Order::weak) {
    races_.access(*region, to, bytes,
                  {me.actor, me.epoch, AccessKind::weak_write, order, scope, where}, me);
    late_.add(*region, to, value, bytes, me, chance());
    record("weak store", me, *region, to, value, bytes);
    ++progress_;
  } else {
    strong_store(me, *region, to, value, bytes, order, scope, where);
  }
}

void ModelMemory::modify(const ThreadName& name, Modify what, void* at, const void* operand,
                         void* old, uint32_t bytes, Order order, Scope scope, CodeAddress where) {
  ++step_;
  ThreadState& me = *running(name).state;
  Region* const region = region_of(at, bytes, me, "an atomic update", where);
  mutate(order, scope, where);
  const bool dropped = faulty(Fault::store_dropped, where);
  const auto update = [&](std::byte* value) {
    if (dropped) return false;
    const uint64_t result = modified(what, number(value, bytes), number(operand, bytes), bytes);
    if (bytes > sizeof result) {
      std::memcpy(value, operand, bytes);  // Only an exchange can be this wide.
    } else {
      std::memcpy(value, &result, bytes);
    }
    return true;
  };
  if (region != nullptr) {
    read_modify_write(me, *region, at, old, bytes, order, scope, where, update);
    return;
  }
  if (old != nullptr) std::memcpy(old, at, bytes);
  update(static_cast<std::byte*>(at));
}

void ModelMemory::compare_exchange(const ThreadName& name, void* at, const void* expected,
                                   const void* desired, void* old, uint32_t bytes, Order order,
                                   Scope scope, CodeAddress where) {
  ++step_;
  ThreadState& me = *running(name).state;
  Region* const region = region_of(at, bytes, me, "a compare_exchange", where);
  mutate(order, scope, where);
  const bool dropped = faulty(Fault::store_dropped, where);
  const auto update = [&](std::byte* value) {
    if (dropped || std::memcmp(value, expected, bytes) != 0) return false;
    std::memcpy(value, desired, bytes);
    return true;
  };
  if (region != nullptr) {
    read_modify_write(me, *region, at, old, bytes, order, scope, where, update);
    return;
  }
  if (old != nullptr) std::memcpy(old, at, bytes);
  update(static_cast<std::byte*>(at));
}

void ModelMemory::fence(const ThreadName& name, Fence kind, Scope scope, CodeAddress where) {
  ++step_;
  ThreadState& me = *running(name).state;
  // An acq_rel fence without one half would still be the other; the mutation removes both halves.
  if (faulty(kind == Fence::acquire ? Fault::acquire_made_relaxed : Fault::release_made_relaxed,
             where))
    return;
  if (scope == Scope::sys && faulty(Fault::sys_made_gpu, where)) scope = Scope::gpu;

  if (kind != Fence::release)
    std::erase_if(me.observed, [&](const Observed& seen) {
      if (!mutually_included(seen.release->scope, seen.release->place, scope, me.place))
        return false;
      join(me, *seen.release);
      return true;
    });
  Sequential* mine = nullptr;
  if (kind == Fence::sequential) {
    for (Sequential& other : sequential_) {
      if (other.scope == scope && other.place.rank == me.place.rank &&
          other.place.block == me.place.block)
        mine = &other;
      if (mutually_included(other.scope, other.place, scope, me.place))
        join(me, {other.known, other.async, scope, other.place});
    }
    if (mine == nullptr) mine = &sequential_.emplace_back(Sequential{scope, me.place, {}, {}});
  }
  if (kind != Fence::acquire) {
    const ReleaseRef release = me.release(scope);
    me.fences[static_cast<size_t>(scope)] = release;
    if (mine != nullptr) {
      mine->known = release->known;
      mine->async = release->async;
    }
  }
  trace_.event(name_of(kind), me.actor, static_cast<uint32_t>(scope), 0, 0);
}

}  // namespace tokenyard::simulation
