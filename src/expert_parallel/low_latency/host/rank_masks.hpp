/// The failure word, the report and the alarm of every rank, from the host's side.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/kernels/call.hpp"
#include "fabric/abort_flag.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::low_latency {

/// In what a rank that is masked for it differs from this one.
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

  /// What kernels are given.
  Masks masks() const {
    return {.failed = failed_.as<uint32_t>(),
            .reports = reports_.as<WaitReport>(),
            .abort_flags = abort_flags_.as<AbortWord>()};
  }
  /// As far as the host can see now.
  std::vector<FailedRank> list() const;
  bool masked(uint32_t rank) const;
  /// In the order of `stream`: kernels that come later take the rank for masked, captured ones too.
  /// None of them reports it, since it has not failed; `list` says so at once.
  void leave_out(uint32_t rank, Stream stream);
  /// In the order of `stream`, on which no kernel that uses these words may be under way.
  void clear(uint32_t rank, Stream stream);

 private:
  bool reported(uint32_t rank) const;  ///< by a kernel
  std::span<AbortWord> abort_flags() const { return {abort_flags_.as<AbortWord>(), ranks_}; }

  Accelerator& accelerator_;
  AbortFlag& abort_flag_;
  uint32_t ranks_;
  const DeviceMemory failed_, reports_, abort_flags_;
  RankSet left_out_{};  ///< by hand
};

}  // namespace tokenyard::low_latency
