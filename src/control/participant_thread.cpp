#include "control/participant_thread.hpp"

#include <utility>

namespace tokenyard::control {

ParticipantThread::ParticipantThread(std::function<void(const std::string& why)> failed)
    : failed_(std::move(failed)) {}

void ParticipantThread::say(const std::function<void(Participant&)>& call) {
  if (broken_) return;
  try {
    call(*participant_);
  } catch (const std::exception& error) {
    broken_ = true;
    failed_(error.what());
  }
}

void ParticipantThread::publish_fenced(Epoch epoch, const std::string& why) {
  asio::post(pool_, [this, epoch, why] {
    broken_ = true;
    participant_->fenced(epoch, why);
  });
}

}  // namespace tokenyard::control
