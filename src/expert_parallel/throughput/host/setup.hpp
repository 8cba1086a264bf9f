/// What the ranks of an ExpertParallel object agreed on when they made it, and what follows from
/// that for its calls. It does not change.
#pragma once

#include <string>

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

  uint32_t local_experts() const { return partition.held_by(world.rank()); }
  /// Returns the bytes of a row; throws InvalidArgument for a format that cannot be.
  uint32_t row_bytes(const RowFormat& format) const {
    return throughput::row_bytes(format, options.hidden);
  }
  /// Plans a call of rows of this size on `sms` blocks; 0: as many as calls have by default.
  Plan plan_of(uint32_t row_bytes, uint32_t sms) const;
  /// Plans work on `sms` blocks that needs no other rank and moves no rows.
  Plan plan_alone(uint32_t sms) const { return plan_of(16, sms); }

  /// Throws InvalidArgument if a call may not have so many blocks.
  void check_sms(uint32_t sms) const;
  /// Throws InvalidArgument if work that needs no other rank may not have so many blocks.
  void check_local_sms(uint32_t sms, const char* argument) const;

  /// Waits until what was enqueued on `stream` has ended; throws PeerTimeout after two timeouts.
  void await_stream(Stream stream, const std::string& what) const;

  World& world;
  Accelerator& accelerator;
  const ExpertParallelOptions options;
  const ExpertPartition partition;
  const Plan plan;  ///< of bf16 rows, on as many blocks as calls have by default
};

}  // namespace tokenyard::throughput
