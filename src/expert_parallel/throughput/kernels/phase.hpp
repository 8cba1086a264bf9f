/// What a wait of these kernels is for, as errors name it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tokenyard::throughput {

enum class Phase : uint32_t {
  dispatch_ready,     ///< a rank has started this call and says where its rows may go
  dispatch_counts,    ///< a block's rows for each rank
  dispatch_experts,   ///< a block's tokens for each of our experts
  dispatch_refusal,   ///< what was wrong with a token whose block refused it
  dispatch_routes,    ///< this rank's other blocks know where their rows go
  dispatch_metadata,  ///< what travels beside a block's rows
  dispatch_places,    ///< this rank's other blocks have given rows their places by expert
  dispatch_load,      ///< a row is in shared memory
  dispatch_arrivals,  ///< a block has stored all its rows
  combine_ready,      ///< a rank has started this call and says where its rows lie
  combine_results,    ///< a rank has prepared a token's row
  combine_stage,      ///< a stage has been summed and is free
  combine_load,       ///< a row is in shared memory
  combine_pulls,      ///< a block has read all it needs
};

/// "dispatch: ready flag", ... in the order of Phase.
std::span<const std::string> phase_names();

}  // namespace tokenyard::throughput
