/// Litmus tests: a few threads of a few strong operations each, as data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/memory.hpp"

namespace tokenyard::litmus {

enum class Kind : uint8_t { read, write, exchange, fence, fence_sequential };

struct Operation {
  Kind kind;
  uint32_t place = 0;  ///< which location; fences have none
  uint32_t value = 0;  ///< that a write stores; different from the place's other writes, never 0
  Order order = Order::relaxed;  ///< of a fence: acquire, release or acq_rel
  Scope scope = Scope::sys;

  bool reads() const { return kind == Kind::read || kind == Kind::exchange; }
  bool writes() const { return kind == Kind::write || kind == Kind::exchange; }
  bool fences() const { return kind == Kind::fence || kind == Kind::fence_sequential; }
  /// A fence.sc does both.
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

/// What a run showed: what each read found, in order of thread and operation, then what each place
/// held at the end.
using Outcome = std::vector<uint32_t>;

}  // namespace tokenyard::litmus
