// ModelMemory's words for bulk copies and their completions.

#include <fmt/format.h>

#include "simulation/model_memory.hpp"

namespace tokenyard::simulation {

using simt::ThreadName;

bool ModelMemory::valid_copy(const ThreadState& me, const void* to, const void* from,
                             uint32_t bytes, const char* what, CodeAddress where) {
  if (bytes % kCellBytes == 0 && reinterpret_cast<uintptr_t>(to) % kCellBytes == 0 &&
      reinterpret_cast<uintptr_t>(from) % kCellBytes == 0)
    return true;
  misuse(fmt::format("{} of {} bytes to {} from {}: all must be multiples of 16", what, bytes,
                     regions_.describe(to), regions_.describe(from)),
         me, where);
  return false;
}

/// Checks an access by the agent. It happens at some later time, but is ordered only after what the
/// issuing thread knows now.
void ModelMemory::touch_copy(ThreadState& me, Region& region, const void* at, uint32_t bytes,
                             AccessKind kind, uint32_t agent, Epoch epoch, CodeAddress where) {
  late_.land_own(region, at, bytes, me);
  races_.access(region, at, bytes, {agent, epoch, kind, Order::weak, Scope::sys, where}, me);
}

void ModelMemory::fence_async(const ThreadName& name, CodeAddress where) {
  ++step_;
  if (faulty(Fault::proxy_fence_removed, where)) return;
  ThreadState& me = *running(name).state;
  me.known.raise(me.slot, me.epoch);
  me.async.join(me.known);
  ++me.epoch;
  trace_.event("fence async", me.actor, 0, 0, 0);
}

// ---- completions --------------------------------------------------------------------------------

CompletionState* ModelMemory::completion_of(ThreadState& me, void* completion, const char* what,
                                            CodeAddress where) {
  Region* const region = region_of(completion, sizeof(uint64_t), me, what, where);
  CompletionState* const state = region == nullptr ? nullptr : completions_.find(completion);
  if (state == nullptr)
    misuse(fmt::format("{} of a completion that was never initialised", what), me, where);
  return state;
}

void ModelMemory::completion_init(const ThreadName& name, void* completion, uint32_t arrivals,
                                  CodeAddress where) {
  ++step_;
  Running& thread = running(name);
  ThreadState& me = *thread.state;
  Region* const region = region_of(completion, sizeof(uint64_t), me, "Completion::init", where);
  if (region == nullptr) return;
  touch(me, *region, completion, sizeof(uint64_t), AccessKind::plain_write, Order::weak,
        Scope::block, where);
  const Slots::Fresh fresh = slots_.take(me.place.rank, hosts_[thread.grid->launcher]->known);
  CompletionState state;
  state.arrivals = arrivals;
  state.agent = add_actor(ActorKind::completion, fresh.slot, me.place, name);
  state.agent_slot = fresh.slot;
  state.first_epoch = fresh.first;
  state.initialised = {me.actor,    me.epoch,     AccessKind::plain_write,
                       Order::weak, Scope::block, where};
  const std::string wrong = completions_.init(completion, std::move(state));
  if (!wrong.empty()) misuse(wrong, me, where);
  trace_.event("completion init", me.actor, region->number, arrivals, 0);
}

void ModelMemory::completion_arrive(const ThreadName& name, void* completion,
                                    uint32_t expected_bytes, CodeAddress where) {
  ++step_;
  ThreadState& me = *running(name).state;
  CompletionState* const state = completion_of(me, completion, "Completion::arrive", where);
  if (state == nullptr) return;
  touch(me, *regions_.find(completion), completion, sizeof(uint64_t), AccessKind::strong_write,
        Order::release, Scope::block, where);
  const std::string wrong = completions_.arrive(*state, expected_bytes, me);
  if (!wrong.empty()) misuse(wrong, me, where);
  trace_.event("arrive", me.actor, state->agent, expected_bytes, state->phase);
  ++progress_;
}

bool ModelMemory::completion_done(const ThreadName& name, void* completion, uint32_t parity,
                                  CodeAddress where) {
  ++step_;
  ThreadState& me = *running(name).state;
  CompletionState* const state = completion_of(me, completion, "Completion::done", where);
  if (state == nullptr) return true;
  std::string wrong;
  const bool done = completions_.done(*state, parity, me, wrong);
  if (!wrong.empty()) misuse(wrong, me, where);
  if (done) late_.land_known(me);
  touch(me, *regions_.find(completion), completion, sizeof(uint64_t), AccessKind::strong_read,
        Order::acquire, Scope::block, where);
  trace_.event("done", me.actor, state->agent, parity, done);
  return done;
}

// ---- copies -------------------------------------------------------------------------------------

void ModelMemory::bulk_load(const ThreadName& name, void* to_shared, const void* from,
                            uint32_t bytes, void* completion, CodeAddress where) {
  ++step_;
  ThreadState& me = *running(name).state;
  CompletionState* const state = completion_of(me, completion, "bulk::load", where);
  Region* const source = region_of(from, bytes, me, "bulk::load from", where);
  Region* const target = region_of(to_shared, bytes, me, "bulk::load", where);
  if (state == nullptr || source == nullptr || target == nullptr || bytes == 0) return;
  if (!valid_copy(me, to_shared, from, bytes, "bulk::load", where)) return;
  const Access& init = state->initialised;
  if (me.async.of(actors_[init.actor].slot) < init.epoch)
    findings_.found({init,
                     {me.actor, me.epoch, AccessKind::bulk_read, Order::weak, Scope::block, where},
                     completion,
                     sizeof(uint64_t),
                     RaceReason::proxy});
  touch_copy(me, *source, from, bytes, AccessKind::bulk_read, state->agent, state->epoch(), where);
  touch_copy(me, *target, to_shared, bytes, AccessKind::bulk_write, state->agent, state->epoch(),
             where);
  ++state->loads;
  Copy copy;
  copy.issuer = me.slot;
  copy.issuer_rank = copy.to_rank = me.place.rank;
  copy.from_rank = source->rank;
  copy.from = static_cast<const std::byte*>(from);
  copy.to = static_cast<std::byte*>(to_shared);
  copy.completion = completion;
  agent_.add(std::move(copy), bytes, random_);
  record("bulk load", me, *source, from, &bytes, sizeof bytes);
  ++progress_;
}

void ModelMemory::start_stores(Running& thread) {
  StoreGroups& stores = *thread.stores;
  if (stores.used) return;
  stores.used = true;
  const ThreadState& me = *thread.state;
  const ThreadName name = actors_[me.actor].name;
  const Clock& known = hosts_[thread.grid->launcher]->known;
  const Slots::Fresh source = slots_.take(me.place.rank, known);
  const Slots::Fresh target = slots_.take(me.place.rank, known);
  stores.source_slot = source.slot;
  stores.source_first = source.first;
  stores.source_agent = add_actor(ActorKind::bulk_source, source.slot, me.place, name);
  stores.target_slot = target.slot;
  stores.target_first = target.first;
  stores.target_agent = add_actor(ActorKind::bulk_target, target.slot, me.place, name);
}

void ModelMemory::bulk_store(const ThreadName& name, void* to, const void* from_shared,
                             uint32_t bytes, CodeAddress where) {
  ++step_;
  Running& thread = running(name);
  ThreadState& me = *thread.state;
  Region* const source = region_of(from_shared, bytes, me, "bulk::store from", where);
  Region* const target = region_of(to, bytes, me, "bulk::store", where);
  if (source == nullptr || target == nullptr || bytes == 0) return;
  if (!valid_copy(me, to, from_shared, bytes, "bulk::store", where)) return;
  start_stores(thread);
  StoreGroups& stores = *thread.stores;
  stores.open_has_stores = true;
  const uint32_t group = stores.closed + 1;
  touch_copy(me, *source, from_shared, bytes, AccessKind::bulk_read, stores.source_agent,
             stores.source_first + group, where);
  touch_copy(me, *target, to, bytes, AccessKind::bulk_write, stores.target_agent,
             stores.target_first + group, where);
  Copy copy;
  copy.issuer = me.slot;
  copy.issuer_rank = copy.from_rank = me.place.rank;
  copy.to_rank = target->rank;
  copy.from = static_cast<const std::byte*>(from_shared);
  copy.to = static_cast<std::byte*>(to);
  copy.group = group;
  agent_.add(std::move(copy), bytes, random_);
  record("bulk store", me, *target, to, &bytes, sizeof bytes);
  ++progress_;
}

void ModelMemory::bulk_commit(const ThreadName& name, CodeAddress) {
  ++step_;
  StoreGroups& stores = *running(name).stores;
  ++stores.closed;
  stores.open_has_stores = false;
}

bool ModelMemory::bulk_wait(const ThreadName& name, uint32_t groups, bool sources_only,
                            CodeAddress) {
  ++step_;
  Running& thread = running(name);
  StoreGroups& stores = *thread.stores;
  ThreadState& me = *thread.state;
  if (!stores.used || stores.closed <= groups) return true;
  const uint32_t group = stores.closed - groups;
  if (!agent_.stores_done(me.slot, group, sources_only)) return false;
  stores.sources_awaited = std::max(stores.sources_awaited, group);
  me.known.raise(stores.source_slot, stores.source_first + group);
  me.async.raise(stores.source_slot, stores.source_first + group);
  if (!sources_only) {
    stores.targets_awaited = std::max(stores.targets_awaited, group);
    me.known.raise(stores.target_slot, stores.target_first + group);
    me.async.raise(stores.target_slot, stores.target_first + group);
  }
  trace_.event(sources_only ? "bulk wait read" : "bulk wait", me.actor, group, 0, 0);
  return true;
}

}  // namespace tokenyard::simulation
