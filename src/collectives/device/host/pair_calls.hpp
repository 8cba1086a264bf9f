/// Calls in which each pair of ranks has its own size: all_to_all with splits, and messages.
#pragma once

#include <vector>

#include "collectives/device/host/session.hpp"
#include "collectives/device/kernels/splits.hpp"

namespace tokenyard::device_collectives {

class PairCalls {
 public:
  explicit PairCalls(Session& session) : session_(session) {}

  /// Sends each other rank its part of the input, and awaits its part of the result.
  void all_to_all(ConstTensorView input, TensorView result, const Splits& splits, const Call& call);
  void all_to_all(ConstTensorView input, TensorView result, const DeviceSplits& splits,
                  const Call& call);
  void exchange(const std::vector<Send>& sends, const std::vector<Receive>& receives,
                const Call& call);

 private:
  /// Throws InvalidArgument if there are more members than messages of a launch allow.
  void check_members() const;
  void exchange_known(const CallParams& described, const std::vector<ConstTensorView>& sent,
                      const std::vector<TensorView>& received, const Call& call);
  void launch_splits(const CallParams& params, const SplitArrays& arrays,
                     const std::vector<CountWord>& known, const Call& call);
  void launch(const MessagesParams& params, const Call& call);
  /// The same, where the last messages are with ranks of other hosts.
  void launch_far(const MessagesParams& params, uint32_t far_count, const Call& call);
  /// Returns the blocks that serve messages inside a host.
  uint32_t blocks_of(const MessagesParams& params, const Call& call) const;

  Session& session_;
};

}  // namespace tokenyard::device_collectives
