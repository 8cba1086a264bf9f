// Which path carries what: queues are spread over the paths by their measured rates, and a long put
// takes the path that will have sent it first.
#include <algorithm>
#include <chrono>
#include <optional>

#include "fabric/proxy/tcp_transport.hpp"

namespace tokenyard {

uint32_t TcpTransport::path_for(const Peer& peer, uint32_t queue, uint64_t bytes) const {
  uint32_t chosen = peer.path_of[queue];
  if (bytes <= kShortBytes) return chosen;
  const auto time = [&](const Path& path) {
    return static_cast<double>(path.queued + path.in_flight + bytes) / weight(peer, path);
  };
  for (uint32_t path = 0; path < peer.paths.size(); ++path)
    if (peer.paths[path].up && time(peer.paths[path]) < time(peer.paths[chosen])) chosen = path;
  return chosen;
}

/// Counts what the peer has taken since the path became busy, or since the measurement before.
void TcpTransport::measure(Path& path, TimePoint now) {
  const double seconds = std::chrono::duration<double>(now - path.measured_since).count();
  if (path.taken_bytes < kMeasuredMin || seconds <= 0) return;
  const double rate = static_cast<double>(path.taken_bytes) / seconds, before = path.facts->rate;
  path.facts->rate = before == 0 ? rate : 0.8 * before + 0.2 * rate;
  path.taken_bytes = 0;
  path.measured_since = now;
}

/// A path that has never been under load counts as the fastest one.
double TcpTransport::weight(const Peer& peer, const Path& path) {
  if (!peer.acknowledged) return 1;
  double most = 1;
  for (const Path& each : peer.paths) most = std::max(most, each.facts->rate.load());
  const double rate = path.facts->rate;
  return rate == 0 ? most : std::max(rate, most / 100);
}

/// Gives each queue a path, in proportion to the rates of those that are up.
void TcpTransport::spread(Peer& peer) {
  const size_t queues = peer.sent.size();
  peer.path_of.assign(queues, 0);
  std::vector<double> load(peer.paths.size());
  for (size_t queue = 0; queue < queues; ++queue) {
    std::optional<size_t> chosen;
    const auto loaded = [&](size_t path) {
      return (load[path] + 1) / weight(peer, peer.paths[path]);
    };
    for (size_t path = 0; path < peer.paths.size(); ++path) {
      if (peer.paths[path].up && (!chosen || loaded(path) < loaded(*chosen))) chosen = path;
    }
    if (!chosen) return;
    load[*chosen] += 1;
    peer.path_of[queue] = static_cast<uint8_t>(*chosen);
  }
}

std::vector<NetworkPath> TcpTransport::paths() const {
  std::vector<NetworkPath> all;
  for (const Facts& facts : facts_) {
    all.push_back({.rank = facts.rank,
                   .number = facts.number,
                   .from = facts.from,
                   .to = facts.to,
                   .up = facts.up,
                   .bytes_sent = facts.bytes.load(std::memory_order_relaxed),
                   .times_lost = facts.losses.load(std::memory_order_relaxed),
                   .bytes_per_second = facts.rate});
  }
  return all;
}

}  // namespace tokenyard
