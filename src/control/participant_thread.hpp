/// Speaks with the participant on a thread of its own, one thing after the other. An engine may be
/// in the middle of a large copy when it is told to freeze, and its transport may need a while for
/// a new epoch; the control thread's heartbeats go on meanwhile, so nobody takes this process for
/// dead.
#pragma once

#include <asio.hpp>
#include <functional>
#include <string>

#include "control/participant.hpp"

namespace tokenyard::control {

class ParticipantThread {
 public:
  /// `failed`: called with what went wrong when the participant has thrown. Nothing more is said to
  /// it then but that it is fenced.
  explicit ParticipantThread(std::function<void(const std::string& why)> failed);
  ~ParticipantThread() { join(); }

  /// Before the first `post`. Borrowed: must live until `join` has returned.
  void serve(Participant& participant) { participant_ = &participant; }
  bool serves() const { return participant_ != nullptr; }

  /// `call(participant)` happens after all that was told before.
  template <class Call>
  void post(Call call) {
    asio::post(pool_, [this, call = std::move(call)] { say(call); });
  }
  /// The last thing that it is told.
  void publish_fenced(Epoch epoch, const std::string& why);
  /// Until all has been said. Nothing may be told any more.
  void join() { pool_.join(); }

 private:
  void say(const std::function<void(Participant&)>& call);

  const std::function<void(const std::string& why)> failed_;
  Participant* participant_ = nullptr;
  bool broken_ = false;
  asio::thread_pool pool_{1};
};

}  // namespace tokenyard::control
