#include "megakernel/shape.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "megakernel/compile.hpp"
#include "megakernel/kernels/worker_shared.hpp"

namespace tokenyard::megakernel {

namespace {

constexpr uint32_t kWorkersHost = 4, kWarpsHost = 1, kWarpsGpu = 8;
constexpr uint32_t kRingGpu = 6, kRingHost = 3;

}  // namespace

Shape shape_of(const MegakernelOptions& options, const Graph& graph, const Accelerator& accelerator,
               bool between_hosts) {
  const bool gpu = accelerator.kind() == AcceleratorKind::gpu;
  const uint32_t multiprocessors = accelerator.capacity().multiprocessors;
  const auto chosen = [](uint32_t asked, uint32_t otherwise) {
    return asked != 0 ? asked : otherwise;
  };
  const uint32_t network_blocks = between_hosts ? 1 : 0;
  const uint32_t free = multiprocessors - options.schedulers - network_blocks;
  Shape shape{.workers = chosen(options.workers, gpu ? free : kWorkersHost),
              .compute_warps = chosen(options.compute_warps,
                                      gpu ? kWarpsGpu : std::max(kWarpsHost, graph.warps_needed())),
              .streams = {.unit_bytes = options.unit_bytes,
                          .depth = chosen(options.ring_units, gpu ? kRingGpu : kRingHost),
                          .in_flight = options.in_flight},
              .schedulers = options.schedulers,
              .task_slots = options.task_slots,
              .event_slots = options.event_slots,
              .network_blocks = network_blocks};
  if (shape.schedulers > kSchedulersMax)
    throw InvalidArgument("schedulers", fmt::format("at most {}", kSchedulersMax),
                          fmt::format("{}", shape.schedulers));
  if (shape.schedulers > 0 && between_hosts)
    throw InvalidArgument("schedulers", "0 between hosts, where runs are static",
                          fmt::format("{}", shape.schedulers));
  if (shape.schedulers > 0 && shape.workers > kScheduledMax)
    throw InvalidArgument("workers", fmt::format("at most {} with schedulers", kScheduledMax),
                          fmt::format("{}", shape.workers));
  if (shape.task_slots > kTaskSlotsMax)
    throw InvalidArgument("task_slots", fmt::format("at most {}", kTaskSlotsMax),
                          fmt::format("{}", shape.task_slots));
  if (shape.compute_warps > kComputeWarpsMax)
    throw InvalidArgument("compute_warps", fmt::format("at most {}", kComputeWarpsMax),
                          fmt::format("{}", shape.compute_warps));
  if (shape.compute_warps < graph.warps_needed())
    throw InvalidArgument("compute_warps",
                          fmt::format("at least the graph's {}", graph.warps_needed()),
                          fmt::format("{}", shape.compute_warps));
  if (shape.streams.depth > kUnitsMax)
    throw InvalidArgument("ring_units", fmt::format("at most {}", kUnitsMax),
                          fmt::format("{}", shape.streams.depth));
  const size_t shared_bytes = accelerator.capacity().shared_bytes;
  if (shape.streams.unit_bytes == 0 || shape.streams.unit_bytes % 128 != 0 ||
      shape.streams.unit_bytes > shared_bytes)
    throw InvalidArgument(
        "unit_bytes",
        fmt::format("a positive multiple of 128, at most the {} of a block", shared_bytes),
        fmt::format("{}", shape.streams.unit_bytes));
  if (options.ring_units == 0)
    shape.streams.depth = ring_units_that_fit(graph, shape, accelerator.capacity());
  shape.streams.in_flight = std::clamp(shape.streams.in_flight, 1u, shape.streams.depth);
  return shape;
}

}  // namespace tokenyard::megakernel
