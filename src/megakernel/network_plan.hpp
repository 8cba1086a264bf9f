/// The messages of a rank's tasks to ranks of other hosts.
///
/// A task stores to a mirror of the far tensor (tensor_memory.cpp), and signals no far rank itself.
/// Where the graph has it write to, or signal, a far rank, it signals an event of its own rank, its
/// `sent`, and that of each such rank, `published`; then the rank's network block
/// (kernels/network_block_kernel.hpp) puts what the task's regions declare, and signals behind it.
/// A task that writes again to a mirror first awaits its `read` of the iteration before, which the
/// network block signals once the network has read the mirror for the last time. So workers know
/// nothing of hosts.
///
///     task --sent--> network block ==puts, signals==> network block of the far rank --event-->
///     task
///       ^---read (of the previous iteration)---'
///
/// These events follow the graph's own in the rank's tables. Proofs see the graph as it was
/// declared, and how puts land (proofs.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megakernel/far_ranks.hpp"
#include "megakernel/kernels/run_params.hpp"
#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

/// The message of one task to one far rank.
struct FarMessage {
  uint32_t task, rank;
  std::vector<Region> writes;  ///< of that rank, apart from one another
  std::vector<Signal> signals;
};

struct NetworkPlan {
  std::vector<FarMessage> messages;    ///< by rank, then by task
  std::vector<uint32_t> sent, read;    ///< [tasks] events, or kNoEvent
  std::vector<uint32_t> read_signals;  ///< [tasks] of `read`, per iteration
  std::vector<uint32_t> published;  ///< [ranks] events that tasks with messages to it signal, too
  std::vector<std::string> events;  ///< names of the events that follow the graph's
  std::vector<uint32_t> incoming;   ///< events of this rank that far ranks signal

  /// Returns the events of this rank that the task signals for the network.
  std::vector<uint32_t> signals_of(uint32_t task) const;
};

/// Throws InvalidGraph (between_hosts) if a task needs more of a far rank than put and signal: it
/// reads or adds to its bytes, or writes them and signals no event of that rank, or writes those of
/// another task, or words, or signals a carried or dynamic event.
void check_far_accesses(std::span<const Graph> graphs, const FarRanks& far);

/// Requires that check_far_accesses has passed.
NetworkPlan plan_network(std::span<const Graph> graphs, uint32_t rank, const FarRanks& far);

}  // namespace tokenyard::megakernel
