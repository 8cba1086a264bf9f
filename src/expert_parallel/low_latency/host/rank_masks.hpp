/// The failure word, report and abort flag of every rank, from the host's side.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/kernels/call.hpp"
#include "fabric/abort_flag.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::low_latency {

/// How a rank that is masked for a difference differs from this one.
struct FormatDifference {
  std::string argument, expected, seen;
};
FormatDifference difference_of(const FailedRank& masked);

class RankMasks {
 public:
  RankMasks(Accelerator& accelerator, AbortFlag& abort_flag, uint32_t ranks);
  ~RankMasks();
  RankMasks(const RankMasks&) = delete;
  RankMasks& operator=(const RankMasks&) = delete;

  /// Returns the view for kernels.
  Masks masks() const {
    return {.failed = failed_.as<uint32_t>(),
            .reports = reports_.as<WaitReport>(),
            .abort_flags = abort_flags_.as<AbortWord>()};
  }
  /// Returns the masked ranks, as far as the host can see.
  std::vector<FailedRank> list() const;
  bool masked(uint32_t rank) const;
  /// Writes a line per rank that is masked, or masked no more, since the last call: a warning where
  /// nothing else says why. `epoch`: of the membership.
  void log_changes(const Log& log, uint64_t epoch);
  /// Masks a rank in the order of `stream`: later kernels, captured ones included, treat it as
  /// masked. No kernel reports it, since the rank has not failed; `list` includes it at once.
  void leave_out(uint32_t rank, Stream stream);
  /// Masks an absent rank in the order of `stream`, for good: it has no memory to store to.
  void leave_absent(uint32_t rank, Stream stream);
  bool absent(uint32_t rank) const { return absent_.contains(rank); }
  /// Unmasks a present rank in the order of `stream`, while no kernel that uses these words may be
  /// running.
  void clear(uint32_t rank, Stream stream);

 private:
  bool reported(uint32_t rank) const;  ///< by a kernel
  std::span<AbortWord> abort_flags() const { return {abort_flags_.as<AbortWord>(), ranks_}; }

  Accelerator& accelerator_;
  AbortFlag& abort_flag_;
  uint32_t ranks_;
  const DeviceMemory failed_, reports_, abort_flags_;
  std::set<uint32_t> left_out_;  ///< masked by the caller, or absent
  std::set<uint32_t> absent_;
  std::set<uint32_t> logged_;  ///< masked, as the last line says
};

}  // namespace tokenyard::low_latency
