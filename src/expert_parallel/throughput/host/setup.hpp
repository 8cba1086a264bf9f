/// The options that the ranks of an ExpertParallel object agreed on, and what follows from them for
/// its calls. Immutable.
#pragma once

#include <string>

#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/common/expert_partition.hpp"
#include "expert_parallel/throughput/host/plan.hpp"
#include "expert_parallel/throughput/host/row_format.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::throughput {

struct Setup {
  /// Collective; throws on all ranks alike. Prepares the kernels.
  Setup(World& world, const ExpertParallelOptions& options);
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  /// Returns the places of all ranks together, which kernels know as experts.
  uint32_t places() const { return places_of(options, world.size()); }
  uint32_t local_experts() const { return partition.held_by(world.rank()); }
  /// Returns the bytes of a row. Throws InvalidArgument for an invalid format.
  uint32_t row_bytes(const RowFormat& format) const {
    return throughput::row_bytes(format, options.hidden);
  }
  /// Returns the bytes that travel for a row: itself and its scales.
  uint64_t bytes_sent_per_row(const RowFormat& format) const {
    return row_bytes(format) + uint64_t{4} * format.scale_words;
  }
  /// Plans a call with rows of this size on `sms` blocks; 0: the default number.
  Plan plan_of(uint32_t row_bytes, uint32_t sms) const;
  /// Plans work on `sms` blocks that involves no other rank and moves no rows.
  Plan plan_alone(uint32_t sms) const { return plan_of(16, sms); }

  /// Throws InvalidArgument unless a call may have `sms` blocks.
  void check_sms(uint32_t sms) const;
  /// Throws InvalidArgument unless work that involves no other rank may have `sms` blocks.
  void check_local_sms(uint32_t sms, const char* argument) const;

  /// Waits for all work enqueued on `stream`. Throws PeerTimeout after two timeouts.
  void await_stream(Stream stream, const std::string& what) const;

  World& world;
  Accelerator& accelerator;
  const ExpertParallelOptions options;
  const ExpertPartition partition;  ///< of places
  const Plan plan;                  ///< for bf16 rows, on the default number of blocks
  const uint32_t first_present;     ///< the first rank that is not absent
};

}  // namespace tokenyard::throughput
