/// Decides whether a ConnectRequest is for this process and for the current epoch.
#pragma once

#include <optional>

#include "collectives/transports/connect_request.hpp"

namespace tokenyard::collectives {

enum class Timing : uint8_t {
  now,
  early,  ///< the sender has begun an epoch that this process will begin too
  never,  ///< for another process, from a non-member, or of an epoch that is over
};

class EpochGate {
 public:
  explicit EpochGate(Member self) : self_(self) {}

  void begin(const View& view) { view_ = view; }
  Epoch epoch() const { return view_.epoch; }
  const Member& self() const { return self_; }
  const View& view() const { return view_; }

  Timing judge(const ConnectRequest& connect_request) const {
    const ChannelName& name = connect_request.channel;
    // Only a refusal travels back to the initiator.
    const bool back = connect_request.kind == ConnectRequestKind::refusal;
    const Member& me = back ? name.initiator : name.acceptor;
    const Member& other = back ? name.acceptor : name.initiator;
    if (me != self_ || name.initiator.slot >= name.acceptor.slot) return Timing::never;
    if (name.epoch < view_.epoch) return Timing::never;
    if (name.epoch > view_.epoch) return back ? Timing::never : Timing::early;
    return view_.contains(other) ? Timing::now : Timing::never;
  }

 private:
  const Member self_;
  View view_;
};

}  // namespace tokenyard::collectives
