#include "simulation/model_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tokenyard/error.hpp"

namespace tokenyard::simulation {

using simt::ThreadName;

ModelMemory::ModelMemory(const Options& options)
    : policy_(options.policy),
      random_(options.random),
      trace_(*options.trace),
      mutator_(options.mutator) {}

ModelMemory::~ModelMemory() = default;

// ---- regions and actors -------------------------------------------------------------------------

void ModelMemory::add_region(std::string name, void* base, size_t bytes, uint32_t rank) {
  regions_.add(std::move(name), base, bytes, rank);
}

/// Removes the region's histories from the unsettled list before they are destroyed with it.
void ModelMemory::forget_region(std::byte* base, size_t bytes) {
  std::erase_if(unsettled_, [&](const History* history) {
    return history->address >= base && history->address < base + bytes;
  });
  regions_.forget(base);
}

void ModelMemory::remove_region(void* base) {
  regions_.remove(base);
}

uint32_t ModelMemory::add_actor(ActorKind kind, Slot slot, const Place& place,
                                const ThreadName& name) {
  actors_.push_back({kind, slot, place, name, ""});
  return static_cast<uint32_t>(actors_.size() - 1);
}

void ModelMemory::misuse(std::string title, const ThreadState& me, CodeAddress where) {
  trace_.note(title);
  findings_.misuse(std::move(title), actors_[me.actor], where);
}

// ---- host code ----------------------------------------------------------------------------------

ModelMemory::Host ModelMemory::add_host(uint32_t rank, std::string label) {
  const auto host = static_cast<Host>(hosts_.size());
  auto state = std::make_unique<ThreadState>();
  const Slots::Fresh fresh = slots_.take(rank, Clock());
  state->slot = fresh.slot;
  state->epoch = fresh.first;
  state->place = {rank, blocks_++, true};
  state->actor = add_actor(ActorKind::host, fresh.slot, state->place, {0, rank, 0, 0, 0});
  actors_[state->actor].label = std::move(label);
  hosts_.push_back(std::move(state));
  if (rank >= launchers_.size()) launchers_.resize(rank + 1, host);
  return host;
}

void ModelMemory::launch_from(Host host) {
  launchers_[hosts_[host]->place.rank] = host;
}

uint32_t ModelMemory::read_flag(Host host, const uint32_t* flag) {
  ++step_;
  ThreadState& me = *hosts_[host];
  uint32_t value = 0;
  Region* const region = region_of(flag, sizeof value, me, "read_flag", nullptr);
  if (region == nullptr) return *flag;
  const Message& message =
      strong_load(me, *region, flag, &value, sizeof value, Order::acquire, Scope::sys, nullptr);
  // Reads that host code makes after the flag are not instrumented, so the flag itself is checked.
  if (message.epoch != 0 && !me.knows(message.slot, message.epoch))
    misuse(fmt::format("host code acquires {}, which was stored without a release",
                       regions_.describe(flag)),
           me, message.where);
  return value;
}

void ModelMemory::write_flag(Host host, uint32_t* flag, uint32_t value) {
  ++step_;
  ThreadState& me = *hosts_[host];
  Region* const region = region_of(flag, sizeof value, me, "write_flag", nullptr);
  if (region == nullptr) {
    *flag = value;
  } else {
    strong_store(me, *region, flag, &value, sizeof value, Order::release, Scope::sys, nullptr);
  }
}

void ModelMemory::host_access(Host host, const void* address, size_t bytes, bool write,
                              CodeAddress where) {
  ThreadState& me = *hosts_[host];
  Region* const region = regions_.find(address);
  if (region == nullptr || bytes == 0) return;
  touch(me, *region, address, static_cast<uint32_t>(bytes),
        write ? AccessKind::plain_write : AccessKind::plain_read, Order::weak, Scope::sys, where);
  ++progress_;
}

// ---- lifetimes of threads -----------------------------------------------------------------------

void ModelMemory::grid_begins(uint32_t rank, uint32_t number, std::span<const ThreadName> threads) {
  if (rank >= launchers_.size()) throw InternalError(fmt::format("rank {} has no host", rank));
  auto grid = std::make_unique<Grid>();
  grid->rank = rank;
  grid->number = number;
  grid->launcher = launchers_[rank];
  ThreadState& host = *hosts_[grid->launcher];
  const ReleaseRef launch = host.release(Scope::sys);
  late_.land_known(host);
  grid->stores.resize(threads.size());
  const uint32_t first_block = blocks_;
  for (const ThreadName& name : threads) {
    auto state = std::make_unique<ThreadState>();
    const Slots::Fresh fresh = slots_.take(rank, launch->known);
    state->slot = fresh.slot;
    state->epoch = fresh.first;
    state->place = {rank, first_block + name.block};
    blocks_ = std::max(blocks_, state->place.block + 1);
    state->known = state->async = launch->known;
    state->actor = add_actor(ActorKind::thread, fresh.slot, state->place, name);
    if (name.id >= running_.size()) running_.resize(name.id + 1);
    running_[name.id] = {state.get(), &grid->stores[grid->threads.size()], grid.get()};
    grid->threads.push_back(std::move(state));
  }
  grids_.push_back(std::move(grid));
  trace_.event("grid begins", rank, number, threads.size(), 0);
  ++progress_;
}

void ModelMemory::block_begins(const ThreadName& first, void* shared, size_t bytes) {
  if (bytes == 0) return;
  const size_t whole = (bytes + kCellBytes - 1) / kCellBytes * kCellBytes;
  add_region(fmt::format("shared memory of block {} of rank {}", first.block, first.rank), shared,
             whole, first.rank);
  running(first).grid->shared.push_back({static_cast<std::byte*>(shared), whole});
}

void ModelMemory::thread_ends(const ThreadName& name) {
  const Running& thread = running(name);
  const StoreGroups& stores = *thread.stores;
  const uint32_t last = stores.closed + (stores.open_has_stores ? 1 : 0);
  if (stores.used && stores.sources_awaited < last)
    misuse("a thread ends before bulk stores have read their sources", *thread.state, nullptr);
  trace_.event("ends", thread.state->actor, 0, 0, 0);
  ++progress_;
}

void ModelMemory::grid_ends(uint32_t rank, uint32_t number) {
  const auto found = std::find_if(grids_.begin(), grids_.end(), [&](const auto& grid) {
    return grid->rank == rank && grid->number == number;
  });
  if (found == grids_.end()) throw InternalError("grid_ends for a grid that never began");
  Grid& grid = **found;
  ThreadState& host = *hosts_[grid.launcher];

  for (const Grid::Shared& shared : grid.shared) {
    if (agent_.drop_loads(shared.base, shared.bytes) > 0)
      misuse("a block ends before bulk loads into its shared memory are done",
             *grid.threads.front(), nullptr);
    completions_.forget(shared.base, shared.bytes, [&](const CompletionState& state) {
      host.known.raise(state.agent_slot, state.epoch());
      slots_.give_back(rank, state.agent_slot, state.epoch());
    });
  }
  for (size_t index = 0; index < grid.threads.size(); ++index) {
    ThreadState& thread = *grid.threads[index];
    StoreGroups& stores = grid.stores[index];
    thread.known.raise(thread.slot, thread.epoch);
    host.known.join(thread.known);
    slots_.give_back(rank, thread.slot, thread.epoch);
    if (!stores.used) continue;
    agent_.finish_stores(thread.slot);
    for (const auto& [slot, first] : {std::pair{stores.source_slot, stores.source_first},
                                      std::pair{stores.target_slot, stores.target_first}}) {
      host.known.raise(slot, first + stores.closed + 1);
      slots_.give_back(rank, slot, first + stores.closed + 1);
    }
  }
  host.async = host.known;
  late_.land_known(host);
  for (const Grid::Shared& shared : grid.shared) forget_region(shared.base, shared.bytes);
  trace_.event("grid ends", rank, number, 0, 0);
  ++progress_;
  for (Running& thread : running_)
    if (thread.grid == &grid) thread = {};
  grids_.erase(found);
}

void ModelMemory::synchronise(std::span<const ThreadName* const> arrived,
                              std::span<const ThreadName* const> waited) {
  // Knows what all members know, but is none of them, so that all members' late stores land.
  ThreadState all;
  all.slot = ~Slot{0};
  for (const ThreadName* name : arrived) {
    const ThreadState& member = *running(*name).state;
    all.known.join(member.known);
    all.async.join(member.async);
  }
  for (const ThreadName* name : arrived) {
    ThreadState& member = *running(*name).state;
    all.known.raise(member.slot, member.epoch);
    ++member.epoch;
  }
  for (const ThreadName* name : waited) {
    ThreadState& member = *running(*name).state;
    member.known = all.known;
    member.async = all.async;
  }
  late_.land_known(all);
  ++progress_;
}

void ModelMemory::stop(uint32_t rank, InFlight fate) {
  late_.stop(rank, fate, random_);
  agent_.stop(rank, fate, random_);
  trace_.event("rank stops", rank, static_cast<uint32_t>(fate), 0, 0);
  ++progress_;
}

// ---- steps of the memory itself -----------------------------------------------------------------

bool ModelMemory::step(bool idle) {
  ++step_;
  bool happened = false;
  // The three take turns in random order: an idle world should be woken by as little as possible.
  const uint32_t first = random_.below(3);
  for (uint32_t turn = 0; turn < 3 && !(idle && happened); ++turn) {
    switch ((first + turn) % 3) {
      case 0:
        happened |= late_.step(idle, chance());
        break;
      case 1:
        happened |= agent_.step(idle, chance());
        break;
      case 2:
        happened |= idle && settle_some();
        break;
    }
  }
  if (happened) ++progress_;
  return happened;
}

/// Settles one history, and one more per 512 in the list: dozens of ranks have hundreds of
/// thousands.
bool ModelMemory::settle_some() {
  constexpr size_t kShare = 512;
  size_t left = 1 + unsettled_.size() / kShare;
  bool any = false;
  while (left != 0 && !unsettled_.empty()) {
    const size_t index = random_.below(static_cast<uint32_t>(unsettled_.size()));
    History& history = *unsettled_[index];
    unsettled_[index] = unsettled_.back();
    unsettled_.pop_back();
    history.unsettled = false;
    if (!history.settle()) continue;
    any = true;
    --left;
  }
  return any;
}

// ---- ordinary accesses --------------------------------------------------------------------------

Region* ModelMemory::region_of(const void* at, size_t bytes, const ThreadState& me,
                               const char* what, CodeAddress where) {
  Region* const region = regions_.find(at);
  if (region == nullptr) {
    misuse(fmt::format("{} at an address outside all memory of the world", what), me, where);
    return nullptr;
  }
  if (!region->alive) misuse(fmt::format("{} in freed memory: {}", what, region->name), me, where);
  if (static_cast<const std::byte*>(at) + bytes > region->base + region->bytes) {
    misuse(fmt::format("{} past the end of {}", what, region->name), me, where);
    return nullptr;
  }
  return region;
}

void ModelMemory::touch(ThreadState& me, Region& region, const void* at, uint32_t bytes,
                        AccessKind kind, Order order, Scope scope, CodeAddress where) {
  late_.land_own(region, at, bytes, me);
  const ThreadState::Recent access{at, bytes, me.epoch, kind, scope};
  // Allocations are page aligned: without mixing, their first words would share an entry.
  const uint64_t mixed = reinterpret_cast<uintptr_t>(at) / 4 * 0x9e3779b97f4a7c15u;
  ThreadState::Recent& recent = me.recent[mixed >> 59];
  if (recent == access) return;
  recent = access;
  races_.access(region, at, bytes, {me.actor, me.epoch, kind, order, scope, where}, me);
}

void ModelMemory::plain_access(const ThreadName& name, const void* address, uint32_t bytes,
                               bool write, CodeAddress where) {
  Region* const region = regions_.find(address);
  if (region == nullptr) return;
  ThreadState& me = *running(name).state;
  if (region_of(address, bytes, me, write ? "an ordinary store" : "an ordinary load", where) ==
      nullptr)
    return;
  touch(me, *region, address, bytes, write ? AccessKind::plain_write : AccessKind::plain_read,
        Order::weak, Scope::sys, where);
}

bool ModelMemory::skip_barrier(const ThreadName&, CodeAddress where) {
  return faulty(Fault::barrier_removed, where);
}

bool ModelMemory::mutated(const ThreadName&, CodeAddress where) {
  return faulty(Fault::rule_broken, where);
}

}  // namespace tokenyard::simulation
