/// Plain sockets that do what a put and a signal do, and nothing else: one thread sends, another
/// receives into a region. The peer of proxy/tcp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "net/fork_guard.hpp"
#include "net/tcp_socket.hpp"

namespace tokenyard::bench {

/// Connections between two threads, and each one's ends.
struct RawTcp {
  explicit RawTcp(uint32_t paths) {
    const net::Listening listening = net::listen_at("127.0.0.1");
    for (uint32_t path = 0; path < paths; ++path) {
      ends[0].push_back(net::connect_to(listening.address, listening.port));
      while (!(accepted = net::accept_socket(listening.socket.native()))) continue;
      ends[1].push_back(std::move(accepted));
      for (auto& end : ends) net::tune(end.back(), 0);
    }
  }
  FileDescriptor accepted;
  std::vector<FileDescriptor> ends[2];
};

/// Moves bytes in parts, part n by connection n modulo their number; `step` moves what it can.
template <class Byte, class Step>
void move_in_parts(const std::vector<FileDescriptor>& paths, std::span<Byte> bytes, Step step) {
  constexpr size_t kPart = 1 << 20;
  const size_t parts = (bytes.size() + kPart - 1) / kPart;
  struct Place {
    size_t part, moved = 0;
  };
  std::vector<Place> places;
  for (size_t path = 0; path < paths.size(); ++path) places.push_back({path});
  // As the proxies' kernels wait: without pause only where there are cores enough.
  const bool spins = std::thread::hardware_concurrency() >= 8;
  for (size_t left = parts; left != 0;) {
    bool any = false;
    for (size_t path = 0; path < paths.size(); ++path) {
      Place& place = places[path];
      if (place.part >= parts) continue;
      const size_t begin = place.part * kPart;
      const size_t size = std::min(kPart, bytes.size() - begin);
      const net::Moved moved =
          step(paths[path], bytes.subspan(begin + place.moved, size - place.moved));
      if (moved.over) throw std::runtime_error("raw tcp: a connection has ended");
      place.moved += moved.bytes;
      any |= moved.bytes != 0;
      if (place.moved < size) continue;
      place = {place.part + paths.size()};
      --left;
    }
    if (!any && !spins) std::this_thread::yield();
  }
}

inline void send_all(const std::vector<FileDescriptor>& paths, std::span<const std::byte> bytes) {
  move_in_parts(paths, bytes, net::send_now);
}
inline void receive_all(const std::vector<FileDescriptor>& paths, std::span<std::byte> bytes) {
  move_in_parts(paths, bytes, net::receive_now);
}

}  // namespace tokenyard::bench
