/// Purposes of these kernels' waits, as errors name them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tokenyard::throughput {

enum class Phase : uint32_t {
  dispatch_ready,     ///< a rank has started this call and announced where its rows may go
  dispatch_counts,    ///< a block's rows for each rank
  dispatch_experts,   ///< a block's tokens for each of our experts
  dispatch_refusal,   ///< the fault of a token whose block refused it
  dispatch_routes,    ///< this rank's other blocks have final rows
  dispatch_metadata,  ///< the metadata of a block's rows has arrived
  dispatch_places,    ///< this rank's other blocks have assigned places by expert
  dispatch_load,      ///< a row is in shared memory
  dispatch_arrivals,  ///< a block has stored all its rows
  combine_ready,      ///< a rank has started this call and announced where its rows are
  combine_results,    ///< a rank has prepared a token's row
  combine_stage,      ///< a stage has been summed and is free
  combine_load,       ///< a row is in shared memory
  combine_pulls,      ///< a block has done its last load
};

/// Returns "dispatch: ready word", ... in the order of Phase.
std::span<const std::string> phase_names();

}  // namespace tokenyard::throughput
