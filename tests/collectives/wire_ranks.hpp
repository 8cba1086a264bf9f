/// Transports of several ranks in one process, polled in turn by the test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "collectives/transports/wire_transport.hpp"

namespace tokenyard::collectives {

class WireRanks {
 public:
  using Adjust = std::function<void(WireOptions&)>;

  /// Not in an epoch yet.
  explicit WireRanks(
      uint32_t ranks, const Adjust& adjust = [](WireOptions&) {}) {
    for (Slot slot = 0; slot < ranks; ++slot) {
      WireOptions options{.self = {slot, 100 + slot},
                          .job = "wire test",
                          .secret = "between us",
                          .host = {},
                          .address = "127.0.0.1"};
      adjust(options);
      members_.push_back(options.self);
      transports_.push_back(std::make_unique<WireTransport>(options));
    }
  }

  WireTransport& operator[](Slot slot) { return *transports_[slot]; }
  View view(Epoch epoch) const { return {epoch, static_cast<uint32_t>(members_.size()), members_}; }
  Contacts contacts() const {
    Contacts contacts;
    for (Slot slot = 0; slot < transports_.size(); ++slot) {
      contacts[slot] = transports_[slot]->contact();
    }
    return contacts;
  }
  void begin_epoch(Epoch epoch) {
    for (auto& transport : transports_) transport->begin_epoch(view(epoch), contacts());
  }

  /// Polls all of them until `done`. Fails the test, with a message, if that takes too long.
  bool poll_until(const std::string& what, const std::function<bool()>& done,
                  std::chrono::seconds at_most = std::chrono::seconds(60)) {
    const auto until = std::chrono::steady_clock::now() + at_most;
    while (!done()) {
      for (auto& transport : transports_) transport->poll();
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "gave up: " << what;
        return false;
      }
    }
    return true;
  }
  /// Polls long enough for anything under way to arrive.
  void poll_a_while() {
    for (int turn = 0; turn < 20'000; ++turn) {
      for (auto& transport : transports_) transport->poll();
    }
  }

 private:
  std::vector<Member> members_;
  std::vector<std::unique_ptr<WireTransport>> transports_;
};

/// Bytes that differ from their neighbours and from those of other seeds.
inline std::vector<std::byte> bytes_of_seed(size_t bytes, uint32_t seed) {
  std::vector<std::byte> made(bytes);
  uint32_t state = seed * 2654435761u + 1;
  for (std::byte& each : made) {
    state = state * 1664525u + 1013904223u;
    each = static_cast<std::byte>(state >> 24);
  }
  return made;
}

}  // namespace tokenyard::collectives
