/// Options of one process's control plane.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "control/store.hpp"
#include "membership/membership.hpp"

namespace tokenyard::control {

struct ControlOptions {
  std::string store;                 ///< "file:/directory" or "tcp://host:port"
  std::shared_ptr<Store> own_store;  ///< used instead of `store` if set
  bool host_store = true;            ///< serve "tcp://host:port" if nobody does
  /// Whether no other process serves it, as where all know who does. It then listens on every
  /// interface, since `host` may be an address that only the others know, and `found` does not wait
  /// for a port that a stranger holds.
  bool sole_host = false;
  std::string job = "tokenyard";
  std::string secret;
  Slot slot = 0;
  uint32_t slots = 1;      ///< number of founders
  uint32_t slots_max = 1;  ///< largest size of the job
  std::string address;     ///< where others reach this process; empty: found automatically
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of `found` and `join`
  /// Limit of `stop` for the others' agreement, and for the last messages; 0: `timeout`.
  std::chrono::nanoseconds farewell{0};
  membership::MembershipOptions membership;
  /// Whether the store keeps the witness's register, if there is a witness. If not: `use_witness`.
  bool witness_in_store = true;
  /// Called periodically by `found` and `join`; may throw to end them.
  std::function<void()> interrupt = [] {};
};

}  // namespace tokenyard::control
