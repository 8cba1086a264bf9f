/// Times calls on every rank by events of its stream.
#pragma once

#include <vector>

#include "bench/harness/pause.hpp"
#include "device/accelerator.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::bench {

/// Returns the device time in us of each of `calls` calls of `body` on this rank. Ranks start each
/// call together, behind a pause, which excludes launch latency and late ranks.
template <class Body>
std::vector<double> time_calls(World& world, Stream stream, uint32_t calls, uint32_t together,
                               Body body) {
  Accelerator& accelerator = accelerator_of(world);
  const uint32_t pause_ns = accelerator.kind() == AcceleratorKind::gpu ? 100'000 : 0;
  constexpr uint32_t kWarmUp = 3;
  std::vector<double> us;
  for (uint32_t call = 0; call < calls + kWarmUp; ++call) {
    world.barrier("bench: start of a call");
    launch(accelerator, pause_kernel, {.blocks = 1, .warps = 1, .cooperative = false}, stream,
           PauseParams{pause_ns});
    const Event begin = accelerator.record(stream);
    for (uint32_t i = 0; i < together; ++i) body(call + i);
    const Event end = accelerator.record(stream);
    if (!accelerator.wait_until(accelerator.now() + std::chrono::seconds(30),
                                [&] { return accelerator.done(end); }))
      throw InternalError("a measured call did not end within 30 s");
    if (call >= kWarmUp) us.push_back(accelerator.elapsed_ms(begin, end) * 1e3 / together);
    accelerator.free_event(begin);
    accelerator.free_event(end);
  }
  return us;
}

}  // namespace tokenyard::bench
