#pragma once

#include "device/apart.hpp"

namespace tokenyard {

template <class T>
TOKENYARD_DEVICE T* settled(T* pointer) {
  return pointer;
}
TOKENYARD_DEVICE uint32_t settled(uint32_t number) {
  return number;
}

TOKENYARD_DEVICE SettledWord::SettledWord(const uint32_t& word) : address_(&word) {}
TOKENYARD_DEVICE uint32_t SettledWord::load() const {
  return tokenyard::load<Order::relaxed, Scope::block>(address_);
}

template <Listening listening>
TOKENYARD_DEVICE void SharedDeadline<listening>::fail(Failure failure, const Awaited& what) const {
  Deadline(*this).fail(failure, what);
}

template <Listening listening>
TOKENYARD_DEVICE bool SharedDeadline<listening>::give_up(uint32_t& polls,
                                                         const Awaited& what) const {
  return Deadline(*this).give_up(polls, what);
}

template <Listening listening, class Condition>
TOKENYARD_DEVICE bool wait_until(const SharedDeadline<listening>& deadline, Awaited& what,
                                 Condition condition) {
  return wait_until(Deadline(deadline), what, condition);
}

}  // namespace tokenyard
