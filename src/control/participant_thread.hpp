/// Calls the participant on a thread of its own, in order. An engine may be in the middle of a
/// large copy when it is asked to freeze, and its transport may take a while to begin an epoch;
/// meanwhile the control thread's heartbeats go on, so nobody takes this process for dead.
#pragma once

#include <asio.hpp>
#include <functional>
#include <string>

#include "control/participant.hpp"

namespace tokenyard::control {

class ParticipantThread {
 public:
  /// `failed` is called with the error if the participant throws. After that the participant is
  /// called only once more, to be fenced.
  explicit ParticipantThread(std::function<void(const std::string& why)> failed);
  ~ParticipantThread() { join(); }

  /// Sets the participant, before the first `post`. It is borrowed until `join` returns.
  void serve(Participant& participant) { participant_ = &participant; }
  bool serves() const { return participant_ != nullptr; }

  /// Calls `call(participant)` after everything posted before.
  template <class Call>
  void post(Call call) {
    asio::post(pool_, [this, call = std::move(call)] { say(call); });
  }
  /// Calls `fenced`, the participant's last call.
  void publish_fenced(Epoch epoch, const std::string& why);
  /// Waits until everything posted has been called. Nothing may be posted afterwards.
  void join() { pool_.join(); }

 private:
  void say(const std::function<void(Participant&)>& call);

  const std::function<void(const std::string& why)> failed_;
  Participant* participant_ = nullptr;
  bool broken_ = false;
  asio::thread_pool pool_{1};
};

}  // namespace tokenyard::control
