/// Asks the witness on a thread of its own, so that a slow or dead store never delays a heartbeat.
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
  /// `replied` is called on this object's thread.
  WitnessClient(std::shared_ptr<Store> store, std::string key,
                std::function<void(const membership::Message&)> replied);
  /// Waits for the current question; a few seconds at most (see Store).
  ~WitnessClient();
  WitnessClient(const WitnessClient&) = delete;
  WitnessClient& operator=(const WitnessClient&) = delete;

  /// Supersedes a question that is not answered yet. If the store fails there is no answer.
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
