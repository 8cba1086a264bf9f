/// Has a megakernel begin at a later run than its first, to test numbers that wrap.
#pragma once

#include <algorithm>

#include "fabric/world_access.hpp"
#include "megakernel/device_tables.hpp"
#include "megakernel/kernels/queue.hpp"
#include "megakernel/megakernel_parts.hpp"

namespace tokenyard::megakernel {

/// Gives access to a member that is private: an explicit instantiation may name it.
template <std::unique_ptr<Megakernel::Impl> Megakernel::*member>
struct PartsOf {
  friend Megakernel::Impl& parts_of(Megakernel& kernel) { return *(kernel.*member); }
};
Megakernel::Impl& parts_of(Megakernel& kernel);
template struct PartsOf<&Megakernel::impl_>;

/// As if this many runs without iterations had ended. Collective, before the first run, on hosts.
inline void begin_after(World& world, Megakernel& kernel, uint64_t runs) {
  Megakernel::Impl& parts = parts_of(kernel);
  parts.runs = runs;
  RunParams params{};
  parts.tables->describe(params);
  auto* const ready_words = reinterpret_cast<Stamped*>(params.windows.own);
  for (uint32_t rank = 0; rank < world.size(); ++rank)
    ready_words[rank] = {static_cast<uint32_t>(runs), 0};
  const uint64_t tickets = runs * parts.shape.workers;
  for (uint64_t* counter : {params.dynamic.published, params.dynamic.drawn})
    if (counter != nullptr) *counter = tickets;
  // Workers have taken what is in the queue's slots.
  for (uint64_t ticket = tickets - std::min<uint64_t>(tickets, params.dynamic.slot_count);
       ticket < tickets; ++ticket)
    *params.dynamic.slot_of(ticket) = Stamped{stamp_of(ticket), kTaken};
  world.barrier("a later run");
}

}  // namespace tokenyard::megakernel
