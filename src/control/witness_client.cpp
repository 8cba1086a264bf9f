#include "control/witness_client.hpp"

#include <utility>

#include "membership/message_codec.hpp"
#include "membership/witness.hpp"
#include "tokenyard/error.hpp"

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
  auto held = store_->get(key_);
  for (;;) {
    std::optional<membership::WitnessRegister> memory;
    if (held) memory = membership::decode_witness(*held);
    if (held && !memory) return;  // written by somebody else: do not overwrite it
    const membership::WitnessAnswer answer = membership::ask_witness(memory, question);
    const Store::Value desired = encode(answer.memory);
    if (held != desired) {
      const Store::Value now = store_->compare_and_set(key_, held, desired);
      if (now != desired) {
        held = now;
        continue;  // another member was faster and may have changed the answer
      }
    }
    replied_(answer.reply);
    return;
  }
}

}  // namespace tokenyard::control
