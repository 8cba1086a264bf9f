/// Calls in which each pair of ranks has its own size: all_to_all with splits, and messages.
#pragma once

#include <vector>

#include "collectives/device/host/session.hpp"

namespace tokenyard::device_collectives {

struct MessagesParams;

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
  void launch(const MessagesParams& params, const Call& call);

  Session& session_;
};

}  // namespace tokenyard::device_collectives
