/// The guarantees of a world with ranks out of load/store reach: queues of puts and signals.
#pragma once

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network_kernels.hpp"
#include "fabric/promise.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::testing {

/// Puts of any length arrive before the signal posted after them, epoch after epoch. `timeout`
/// limits each kernel's waits.
inline void keeps_order_over_network(World& world, uint32_t epochs,
                                     std::chrono::nanoseconds timeout) {
  promise(network_of(world) != nullptr, "a world with far ranks has no network");
  Accelerator& gpu = accelerator_of(world);
  const Stream stream;
  const auto finish = [&] {
    const Event end = gpu.record(stream);
    promise(gpu.wait_until(gpu.now() + std::chrono::seconds(60), [&] { return gpu.done(end); }),
            "the stream's work did not end within 60 s");
    gpu.free_event(end);
  };
  // In the arena, which lives as long as the network: if a peer is absent, nothing tells when the
  // network has read the last source.
  const ArenaBlock window = arena_of(world).allocate(sizeof(NetworkWindow), stream);
  const ArenaBlock source = arena_of(world).allocate(world.size() * kPieceBytes, stream);
  // Keeps allocations alive while this rank's kernels use them.
  std::vector<std::shared_ptr<void>> kept;
  const auto allocate = [&](size_t bytes) {
    kept.emplace_back(gpu.allocate(bytes), [&](void* memory) { gpu.free(memory); });
    return kept.back().get();
  };
  ErrorRecord cell(gpu, abort_flag_of(world));
  gpu.fill(window.data(), 0, sizeof(NetworkWindow), stream);
  const auto offsets = gather(world, window.offset(), "windows");
  NetworkParams params{.wait_context = cell.wait_context(timeout),
                       .queues = network_of(world)->queues(),
                       .windows = static_cast<uint64_t*>(allocate(offsets.size() * 8)),
                       .mine = reinterpret_cast<NetworkWindow*>(window.data()),
                       .source = reinterpret_cast<uint8_t*>(source.data()),
                       .rank = world.rank(),
                       .ranks = world.size(),
                       .epoch = 0,
                       .wrong = static_cast<uint32_t*>(allocate(sizeof(uint32_t)))};
  gpu.copy(const_cast<uint64_t*>(params.windows), offsets.data(), offsets.size() * 8, stream);
  finish();
  world.barrier("windows are clean");

  static const std::array<std::string, 3> kPhases = {"network: post", "network: arrive",
                                                     "network: flush"};
  for (params.epoch = 1; params.epoch <= epochs; ++params.epoch) {
    launch(gpu, network_exchange_kernel, {.blocks = 1, .warps = 1}, stream, params);
    finish();
    cell.check(kPhases);
  }
  uint32_t wrong = 0;
  gpu.copy(&wrong, params.wrong, sizeof wrong, stream);
  finish();
  promise(wrong == 0, fmt::format("{} bytes were not visible although their signal was", wrong));
  world.barrier("exchanged");
}

inline void keeps_order_over_network(World& world, uint32_t epochs) {
  keeps_order_over_network(world, epochs, world.timeout());
}

/// A wait for a signal that never comes ends at its deadline and names the peer.
inline void names_the_absent_over_network(World& world) {
  const uint32_t absent = world.size() - 1;
  if (world.rank() == absent) {
    // Sets up its window with the others, and then sends nothing.
    const ArenaBlock window = arena_of(world).allocate(sizeof(NetworkWindow), Stream{});
    (void)gather(world, window.offset(), "windows");
    world.barrier("windows are clean");
    world.barrier("it was named");
    return;
  }
  try {
    keeps_order_over_network(world, 1, std::chrono::milliseconds(300));
    promise(world.topology().peers[absent].reach != Reach::put_signal,
            "an absent rank was not missed");
  } catch (const PeerTimeout& error) {
    promise(error.facts.rank == absent && error.facts.phase == "network: arrive", error.what());
  }
  world.barrier("it was named");
}

}  // namespace tokenyard::testing
