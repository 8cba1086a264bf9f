/// Runs a litmus program on the machine under test: the memory of src/simulation.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "simulation/litmus_program.hpp"
#include "simulation/model_memory.hpp"

namespace tokenyard::litmus {

struct Shown {
  Outcome outcome;
  bool raced = false;
};

/// Runs a program once. Threads are interleaved as the seed decides, each in program order.
inline Shown run(const Program& program, uint64_t seed, simulation::Trace& trace) {
  using simulation::ModelMemory;
  simulation::Random random(seed);
  const simulation::Policy policy = simulation::Policy::draw(random, 2);
  ModelMemory memory({.policy = policy, .random = random.split(), .trace = &trace});
  // One location per 16-byte cell, so that locations do not affect each other.
  alignas(16) std::array<uint32_t, 4 * 4> words{};
  memory.add_region("places", words.data(), sizeof words, 0);
  const auto at = [&](uint32_t place) { return &words[size_t{place} * 4]; };

  for (uint32_t rank = 0; rank < 2; ++rank) memory.add_host(rank, "host");
  std::vector<simt::ThreadName> names;
  for (uint32_t id = 0; id < program.threads.size(); ++id)
    names.push_back({id, program.threads[id].rank, 0, program.threads[id].block, id});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    std::vector<simt::ThreadName> grid;
    for (const simt::ThreadName& name : names)
      if (name.rank == rank) grid.push_back(name);
    memory.grid_begins(rank, 0, grid);
  }

  std::vector<size_t> next(program.threads.size());
  std::vector<std::vector<uint32_t>> found(program.threads.size());
  std::vector<uint32_t> live;
  for (uint32_t id = 0; id < names.size(); ++id) live.push_back(id);
  while (!live.empty()) {
    const uint32_t pick = random.below(static_cast<uint32_t>(live.size()));
    const uint32_t id = live[pick];
    const Operation& operation = program.threads[id].operations[next[id]];
    const auto where = reinterpret_cast<simt::CodeAddress>(uintptr_t{id} * 16 + next[id] + 1);
    uint32_t old = 0;
    switch (operation.kind) {
      case Kind::read:
        memory.load(names[id], at(operation.place), &old, 4, operation.order, operation.scope,
                    where);
        break;
      case Kind::write:
        memory.store(names[id], at(operation.place), &operation.value, 4, operation.order,
                     operation.scope, where);
        break;
      case Kind::exchange:
        memory.modify(names[id], simt::Modify::exchange, at(operation.place), &operation.value,
                      &old, 4, operation.order, operation.scope, where);
        break;
      case Kind::fence:
        memory.fence(names[id],
                     operation.order == Order::acquire   ? Fence::acquire
                     : operation.order == Order::release ? Fence::release
                                                         : Fence::acq_rel,
                     operation.scope, where);
        break;
      case Kind::fence_sequential:
        memory.fence(names[id], Fence::sequential, operation.scope, where);
        break;
    }
    if (operation.reads()) found[id].push_back(old);
    if (++next[id] == program.threads[id].operations.size()) {
      live[pick] = live.back();
      live.pop_back();
    }
  }
  Shown shown;
  for (const auto& values : found)
    shown.outcome.insert(shown.outcome.end(), values.begin(), values.end());
  for (uint32_t place = 0; place < program.places; ++place) shown.outcome.push_back(*at(place));
  shown.raced = !memory.findings().list().empty();
  return shown;
}

}  // namespace tokenyard::litmus
