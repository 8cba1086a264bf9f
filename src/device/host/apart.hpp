#pragma once

#include "device/apart.hpp"

namespace tokenyard {

template <class T>
DEVICE T* settled(T* pointer) {
  return pointer;
}
DEVICE uint32_t settled(uint32_t number) {
  return number;
}

DEVICE SettledWord::SettledWord(const uint32_t& word) : address_(&word) {}
DEVICE uint32_t SettledWord::load() const {
  return tokenyard::load<Order::relaxed, Scope::block>(address_);
}

template <Listening listening>
DEVICE void SharedDeadline<listening>::fail(Failure failure, const Awaited& what) const {
  Deadline(*this).fail(failure, what);
}

template <Listening listening>
DEVICE bool SharedDeadline<listening>::give_up(uint32_t& polls, const Awaited& what) const {
  return Deadline(*this).give_up(polls, what);
}

template <Listening listening, class Condition>
DEVICE bool wait_until(const SharedDeadline<listening>& deadline, Awaited& what,
                       Condition condition) {
  return wait_until(Deadline(deadline), what, condition);
}

}  // namespace tokenyard
