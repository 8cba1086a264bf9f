#include "simulation/history.hpp"

#include <algorithm>
#include <cstring>

namespace tokenyard::simulation {
namespace {

/// Longer histories add nothing; beyond this length the oldest messages are forgotten.
constexpr size_t kMessagesMax = 12;

bool known(const Message& message, const ThreadState& me) {
  if (message.epoch == 0 || me.knows(message.slot, message.epoch)) return true;
  return std::any_of(message.readers.begin(), message.readers.end(),
                     [&](const auto& reader) { return me.knows(reader.slot, reader.epoch); });
}

}  // namespace

void History::catch_up(const Chance& chance) {
  if (!messages.empty() && std::memcmp(messages.back().value.data(), address, bytes) == 0) {
    // No store stays invisible for ever: one that is old enough hides all before it.
    size_t old = 0;
    for (size_t index = 1; index < messages.size(); ++index)
      if (messages[index].born + chance.policy.stale_steps < chance.step) old = index;
    forget(old);
    return;
  }
  messages.clear();
  Message found;
  std::memcpy(found.value.data(), address, bytes);
  found.born = chance.step;
  messages.push_back(std::move(found));
}

size_t History::oldest_readable(const ThreadState& me) const {
  size_t index = messages.size() - 1;
  while (index > 0 && !known(messages[index], me)) --index;
  return index;
}

const Message& History::read(const ThreadState& me, Scope scope, const Chance& chance) {
  const size_t newest = messages.size() - 1;
  if (newest == 0) return messages.front();
  size_t found = newest;
  if (chance.random.chance(chance.policy.stale_per_1024)) {
    const size_t oldest = oldest_readable(me);
    if (oldest < newest)
      found = chance.policy.oldest_first
                  ? oldest
                  : oldest + chance.random.below(static_cast<uint32_t>(newest - oldest + 1));
  }
  note(found, me, scope);
  return messages[found];
}

void History::note(size_t index, const ThreadState& me, Scope scope) {
  Message& message = messages[index];
  // The oldest message needs no readers, since none is older. A load that is not morally strong
  // with the store does not observe it, not even for later loads of its own thread.
  if (index == 0 || message.slot == me.slot) return;
  if (!mutually_included(scope, me.place, message.scope, message.place)) return;
  const bool noted = std::any_of(message.readers.begin(), message.readers.end(),
                                 [&](const auto& reader) { return reader.slot == me.slot; });
  if (!noted) message.readers.push_back({me.slot, me.epoch});
}

size_t History::read_for_update(const ThreadState& me, const Chance& chance) {
  const size_t newest = messages.size() - 1;
  if (newest == 0 || !chance.random.chance(chance.policy.insert_per_1024)) return newest;
  const size_t oldest = oldest_readable(me);
  const size_t wanted = oldest + chance.random.below(static_cast<uint32_t>(newest - oldest + 1));
  // No two read-modify-writes may read the same message.
  for (size_t index = wanted; index < newest; ++index)
    if (!messages[index + 1].atomic_with_previous) return index;
  return newest;
}

bool History::insert(Message message, const ThreadState& me, const Chance& chance) {
  const size_t newest = messages.size() - 1;
  size_t after = newest;
  if (newest > 0 && chance.random.chance(chance.policy.insert_per_1024)) {
    const size_t oldest = oldest_readable(me);
    after = oldest + chance.random.below(static_cast<uint32_t>(newest - oldest + 1));
    while (after < newest && messages[after + 1].atomic_with_previous) ++after;
  }
  return append_after(after, std::move(message));
}

bool History::append_after(size_t index, Message message) {
  const bool newest = index + 1 == messages.size();
  messages.insert(messages.begin() + static_cast<std::ptrdiff_t>(index) + 1, std::move(message));
  if (newest) write_through();
  if (messages.size() > kMessagesMax) forget(messages.size() - kMessagesMax);
  return newest;
}

bool History::settle() {
  if (messages.size() < 2) return false;
  forget(messages.size() - 1);
  return true;
}

void History::forget(size_t count) {
  if (count == 0) return;
  messages.erase(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count));
  messages.front().readers.clear();
  messages.front().atomic_with_previous = false;
}

void History::write_through() {
  std::memcpy(address, messages.back().value.data(), bytes);
}

}  // namespace tokenyard::simulation
