#include "control/witness_client.hpp"

#include <utility>

#include "membership/witness_question.hpp"

namespace tokenyard::control {

WitnessClient::WitnessClient(std::shared_ptr<Store> store, std::string key,
                             std::function<void(const membership::Message&)> replied)
    : store_(std::move(store)), key_(std::move(key)), replied_(std::move(replied)) {}

WitnessClient::~WitnessClient() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  change_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WitnessClient::ask(const membership::Message& question) {
  {
    const std::lock_guard lock(mutex_);
    question_ = question;
    // Most jobs never need the witness.
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  }
  change_.notify_all();
}

void WitnessClient::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    change_.wait(lock, [this] { return over_ || question_.has_value(); });
    if (over_) return;
    const membership::Message question = *std::exchange(question_, std::nullopt);
    lock.unlock();
    try {
      put(question);
    } catch (const std::exception&) {
      // An unreachable witness does not answer, like an unreachable member.
    }
    lock.lock();
  }
}

void WitnessClient::put(const membership::Message& question) {
  membership::WitnessQuestion asked(question);
  auto held = store_->get(key_);
  while (const auto desired = asked.next(std::move(held)))
    held = store_->compare_and_set(key_, asked.expected(), *desired);
  if (asked.reply()) replied_(*asked.reply());
}

}  // namespace tokenyard::control
