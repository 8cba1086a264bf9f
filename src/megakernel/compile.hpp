/// From the graphs of all ranks to the tables of one: what can be proved is proved on the way.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "megakernel/kernels/run_params.hpp"
#include "megakernel/placement/launches.hpp"
#include "megakernel/placement/placement.hpp"
#include "megakernel/proofs/triggers.hpp"
#include "megakernel/shape.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

/// Everything about all ranks that can be known without a device.
struct Compiled {
  Triggers triggers;
  Placement placement;  ///< of a dynamic run: all tasks of a rank in the order of their packets
  Launches launches;    ///< of a dynamic run
};

/// Throws InvalidGraph. `shapes`: [ranks]; `placement` instead of one made here, if given.
Compiled compile(std::span<const Graph> graphs, std::span<const Shape> shapes,
                 std::optional<Placement> placement = std::nullopt);

/// The tables of one rank, as its device gets them.
struct Program {
  std::vector<std::byte> packets;
  std::vector<uint32_t> positions;  ///< [tasks + 1]
  std::vector<uint32_t> queues;     ///< [workers + 1]
  std::vector<EventRecord> events;  ///< [events]
  // Of dynamic runs:
  std::vector<Watch> watches;
  std::vector<Dependent> dependents;
  std::vector<uint32_t> places;  ///< PacketPlaces of the same
  uint32_t counted = 0;          ///< tasks whose end an iteration awaits
  uint32_t queued = 0;           ///< tasks that go through the rank's queue
  bool pins = false;             ///< whether there are tasks for one worker only
  uint32_t event_slots = 0;      ///< of each scheduler's list
  uint32_t packet_units = 0;     ///< from one packet to the next
  uint32_t scheduler_bytes = 0;
  uint32_t scratch_bytes = 0;
  uint32_t ahead_bytes = 0;
  StreamPlan streams;  ///< empty if nothing streams
  /// Shared memory that a block needs besides the kernel's own.
  uint32_t tail_bytes(uint32_t compute_warps) const;
};

/// Throws InvalidGraph (packet).
Program make_program(std::span<const Graph> graphs, uint32_t rank, const Shape& shape,
                     const Compiled& compiled);

/// Throws InvalidGraph (packet) if the packets of a dynamic run, of so many kPacketAlignment each,
/// are more than a PacketPlace can tell apart.
void check_packet_places(uint32_t rank, size_t tasks, uint32_t packet_units);

/// As many units of a warp's ring as fit beside what the graph's tasks need, at least one and at
/// most as many as the shape has.
uint32_t ring_units_that_fit(const Graph& graph, const Shape& shape, const Capacity& capacity);

/// Throws InvalidGraph (co_residency, shared_memory) if a rank's device cannot run it.
void check_capacity(const Program& program, const Shape& shape, const Graph& graph,
                    const Capacity& capacity);

}  // namespace tokenyard::megakernel
