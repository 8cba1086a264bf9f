/// Litmus tests as data: a few threads with a few strong operations each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/memory.hpp"

namespace tokenyard::litmus {

enum class Kind : uint8_t { read, write, exchange, fence, fence_sequential };

struct Operation {
  Kind kind;
  uint32_t place = 0;  ///< index of the location; unused by fences
  uint32_t value = 0;  ///< stored by a write; differs from the place's other writes, and is not 0
  Order order = Order::relaxed;  ///< for a fence: acquire, release or acq_rel
  Scope scope = Scope::sys;

  bool reads() const { return kind == Kind::read || kind == Kind::exchange; }
  bool writes() const { return kind == Kind::write || kind == Kind::exchange; }
  bool fences() const { return kind == Kind::fence || kind == Kind::fence_sequential; }
  /// A fence.sc both acquires and releases.
  bool acquires() const {
    return kind == Kind::fence_sequential ||
           (kind != Kind::write && (order == Order::acquire || order == Order::acq_rel));
  }
  bool releases() const {
    return kind == Kind::fence_sequential ||
           (kind != Kind::read && (order == Order::release || order == Order::acq_rel));
  }
};

struct Thread {
  uint32_t rank = 0, block = 0;
  std::vector<Operation> operations;
};

struct Program {
  std::string name;
  uint32_t places = 2;
  std::vector<Thread> threads;
};

/// A run's result: the values that its reads returned, in order of thread and operation, then the
/// final value of each place.
using Outcome = std::vector<uint32_t>;

}  // namespace tokenyard::litmus
