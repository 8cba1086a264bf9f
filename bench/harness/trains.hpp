/// Measures device time in trains of calls behind a pause, so that no call waits for its launch.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "bench/harness/graph.hpp"
#include "bench/harness/pause.hpp"
#include "device/accelerator.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::bench {

/// Calls between two events, and the pause during which all of them are enqueued.
inline constexpr uint32_t kTrain = 20, kPauseNs = 1'000'000;

/// The way in which a train's calls are launched.
enum class Launched : uint8_t { one_by_one, as_a_graph };

/// Runs `trains` measured trains, which ranks start together, behind two that warm up. `enqueue`
/// enqueues a train's calls. `prepare()` comes before each train, and `measured(us)`, with the time
/// per call, behind each one that counts.
template <class Enqueue, class Prepare, class Measured>
void run_trains(World& world, Stream stream, uint32_t trains, Launched how, const Enqueue& enqueue,
                const Prepare& prepare, const Measured& measured) {
  Accelerator& accelerator = accelerator_of(world);
  const uint32_t pause_ns = accelerator.kind() == AcceleratorKind::gpu ? kPauseNs : 0;
  constexpr uint32_t kWarmUp = 2;
  std::optional<Graph> graph;
  if (how == Launched::as_a_graph) graph.emplace(accelerator, stream, enqueue);
  for (uint32_t train = 0; train < trains + kWarmUp; ++train) {
    prepare();
    world.barrier("bench: start of a train");
    launch(accelerator, pause_kernel, {.blocks = 1, .warps = 1, .cooperative = false}, stream,
           PauseParams{pause_ns});
    const Event begin = accelerator.record(stream);
    if (graph)
      graph->launch();
    else
      enqueue();
    const Event end = accelerator.record(stream);
    if (!accelerator.wait_until(accelerator.now() + std::chrono::seconds(30),
                                [&] { return accelerator.done(end); }))
      throw InternalError("a measured train did not end within 30 s");
    if (train >= kWarmUp) measured(accelerator.elapsed_ms(begin, end) * 1e3 / kTrain);
    accelerator.free_event(begin);
    accelerator.free_event(end);
  }
}

}  // namespace tokenyard::bench
