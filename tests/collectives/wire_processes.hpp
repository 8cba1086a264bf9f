/// Transports of ranks that are processes.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/mapping.hpp"
#include "collectives/transports/wire_transport.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard::collectives {

/// Memory shared by a test and its child processes; made before they are.
template <class T>
class SharedBoard {
 public:
  T* operator->() const { return at_; }

 private:
  Mapping memory_ = Mapping::with_children(sizeof(T));
  T* at_ = new (memory_.base()) T;
};

inline void await(const std::string& what, const std::function<bool()>& done,
                  std::chrono::seconds at_most = std::chrono::seconds(60)) {
  const auto until = std::chrono::steady_clock::now() + at_most;
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("gave up: " + what);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// Where ranks leave their contacts, in place of the control plane.
struct ContactBoard {
  struct Place {
    std::atomic<size_t> bytes = 0;
    std::array<std::byte, 512> contact;
  };
  std::array<Place, 8> places;

  void publish(Slot slot, const Contact& contact) {
    std::memcpy(places[slot].contact.data(), contact.data(), contact.size());
    places[slot].bytes = contact.size();
  }
  Contacts of(const View& view) {
    Contacts contacts;
    for (const Member& member : view.members) {
      Place& place = places[member.slot];
      await("a contact", [&] { return place.bytes != 0; });
      contacts[member.slot].assign(place.contact.begin(), place.contact.begin() + place.bytes);
    }
    return contacts;
  }
};

/// Returns the transport of one of the view's ranks, in its epoch.
inline std::unique_ptr<WireTransport> join_wire(ContactBoard& board, const View& view, Slot self,
                                                WireOptions options = {}) {
  options.self = *view.at(self);
  options.secret = "between processes";
  options.address = "127.0.0.1";
  auto transport = std::make_unique<WireTransport>(options);
  board.publish(self, transport->contact());
  transport->begin_epoch(view, board.of(view));
  return transport;
}

inline View view_of(uint32_t ranks, Epoch epoch = 1) {
  View view{.epoch = epoch, .slots = ranks, .members = {}};
  for (Slot slot = 0; slot < ranks; ++slot) view.members.push_back({slot, 1000 + slot});
  return view;
}

/// Moves all `bytes` by `move`, which gets the number already moved and returns how many more.
inline void move_all(Transport& transport, size_t bytes, const std::string& what,
                     const std::function<size_t(size_t)>& move) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  size_t done = 0;
  for (uint64_t idle = 0; done < bytes;) {
    const size_t now = move(done);
    done += now;
    idle = now > 0 ? 0 : idle + 1;
    if (now == 0) transport.poll();
    if (idle < 256) continue;
    std::this_thread::yield();  // the other process may need this core
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("gave up: " + what);
  }
}

inline void send_all(Transport& transport, Channel& channel, std::span<const std::byte> bytes) {
  move_all(transport, bytes.size(), "sending",
           [&](size_t done) { return channel.send_some(bytes.subspan(done)); });
}

inline void receive_all(Transport& transport, Channel& channel, std::span<std::byte> into) {
  move_all(transport, into.size(), "receiving",
           [&](size_t done) { return channel.receive_some(into.subspan(done)); });
}

}  // namespace tokenyard::collectives
