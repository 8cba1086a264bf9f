/// Compiles the graphs of all ranks to the tables of one, and proves all that can be proved without
/// a device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "megakernel/far_ranks.hpp"
#include "megakernel/kernels/run_params.hpp"
#include "megakernel/network_plan.hpp"
#include "megakernel/placement/launches.hpp"
#include "megakernel/placement/placement.hpp"
#include "megakernel/proofs/triggers.hpp"
#include "megakernel/shape.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

/// The device-independent result for all ranks.
struct Compiled {
  Triggers triggers;
  Placement placement;  ///< dynamic runs: all tasks of a rank in packet order
  Launches launches;    ///< dynamic runs only
  /// [ranks] between hosts; else empty. `triggers` has its events, too.
  std::vector<NetworkPlan> network;
};

/// Compiles and proves the graphs. `shapes`: [ranks]; `placement`: if given, used instead of a
/// computed one. Throws InvalidGraph.
Compiled compile(std::span<const Graph> graphs, std::span<const Shape> shapes,
                 std::optional<Placement> placement = std::nullopt, const FarRanks& far = {});

/// The tables of one rank, in the form that its device uses.
struct Program {
  std::vector<std::byte> packets;
  std::vector<uint32_t> positions;  ///< [tasks + 1]
  std::vector<uint32_t> queues;     ///< [workers + 1]
  std::vector<EventRecord> events;  ///< [events]
  // Dynamic runs only:
  std::vector<Watch> watches;
  std::vector<Dependent> dependents;
  std::vector<uint32_t> places;  ///< PacketPlaces of the dependents
  uint32_t counted = 0;          ///< tasks per iteration whose end is counted
  uint32_t queued = 0;           ///< tasks that go through the rank's queue
  bool pins = false;             ///< whether any task is pinned to a worker
  uint32_t event_slots = 0;      ///< capacity of each scheduler's list
  uint32_t packet_units = 0;     ///< from one packet to the next, in kPacketAlignment
  uint32_t scheduler_bytes = 0;
  uint32_t scratch_bytes = 0;
  uint32_t ahead_bytes = 0;
  StreamPlan streams;  ///< empty if nothing streams
  /// Returns the bytes of shared memory that a block needs in addition to the kernel's own.
  uint32_t tail_bytes(uint32_t compute_warps) const;
};

/// Returns the tables of `rank`. Throws InvalidGraph (packet).
Program make_program(std::span<const Graph> graphs, uint32_t rank, const Shape& shape,
                     const Compiled& compiled, const FarRanks& far = {});

/// Throws InvalidGraph (packet) if the packets of a dynamic run, each of `packet_units` units of
/// kPacketAlignment, exceed the range of a PacketPlace.
void check_packet_places(uint32_t rank, size_t tasks, uint32_t packet_units);

/// Returns the number of units per warp's ring that fit beside the needs of the graph's tasks: at
/// least one, at most the shape's.
uint32_t ring_units_that_fit(const Graph& graph, const Shape& shape, const Capacity& capacity);

/// Throws InvalidGraph (co_residency, shared_memory) if a rank's device cannot run it.
void check_capacity(const Program& program, const Shape& shape, const Graph& graph,
                    const Capacity& capacity);

}  // namespace tokenyard::megakernel
