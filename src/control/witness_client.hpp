/// Asks the witness on a thread of its own, so that a store that is slow or gone never holds up a
/// heartbeat.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "control/store.hpp"
#include "membership/message.hpp"

namespace tokenyard::control {

class WitnessClient {
 public:
  /// `replied` is called on the clerk's thread.
  WitnessClient(std::shared_ptr<Store> store, std::string key,
                std::function<void(const membership::Message&)> replied);
  /// Waits for a question that is being asked: for a few seconds at most (see Store).
  ~WitnessClient();
  WitnessClient(const WitnessClient&) = delete;
  WitnessClient& operator=(const WitnessClient&) = delete;

  /// Makes a question void that was not answered yet. A store that fails gives no answer.
  void ask(const membership::Message& question);

 private:
  void work();
  void put(const membership::Message& question);

  std::shared_ptr<Store> store_;
  const std::string key_;
  const std::function<void(const membership::Message&)> replied_;
  std::mutex mutex_;
  std::condition_variable change_;
  std::optional<membership::Message> question_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace tokenyard::control
