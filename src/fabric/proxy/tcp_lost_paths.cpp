// Paths that may be lost and made anew (docs/decisions/lost_paths.md): frames are kept until the
// peer has acknowledged them, and those of a lost path are sent again once both ends have closed
// it.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "fabric/proxy/tcp_transport.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard {

namespace {

constexpr std::chrono::milliseconds kSpread{1000};
/// A peer that ends closes its paths; this long it has to say so.
constexpr std::chrono::milliseconds kTellLoss{500};

}  // namespace

/// A connection has broken.
void TcpTransport::fail(Peer& peer, uint32_t path, const std::string& why) {
  if (!peer.acknowledged || peer.left) return break_off(peer, why);
  lose(peer, path, why);
}

bool TcpTransport::any_up(const Peer& peer) {
  return std::ranges::any_of(peer.paths, [](const Path& path) { return path.up; });
}

void TcpTransport::acknowledge(Peer& peer, uint32_t number) {
  Path& path = peer.paths[number];
  const uint32_t worth = peer.receiver->worth_acknowledging(number);
  if (!path.up || path.tells || peer.left || worth == path.acknowledged) return;
  path.acknowledged = worth;
  path.tells = true;
  enqueue(peer, number,
          {.kind = PutFrameKind::taken,
           .turn = peer.receiver->taken(number),
           .path = number,
           .life = path.life},
          {}, 0, false);
}

void TcpTransport::taken(uint32_t rank, uint32_t number, uint32_t life, uint32_t count) {
  Peer& peer = *peers_[rank];
  Path& path = peer.paths[number];
  if (!path.up || life != path.life) return;
  const auto sent = static_cast<uint32_t>(path.sequence - path.numbered);
  if (static_cast<int32_t>(sent - count) < 0)
    throw net::ProtocolError("acknowledges frames that were not sent");
  while (!path.unacknowledged.empty() &&
         static_cast<int32_t>(path.unacknowledged.front().frame.sequence - count) < 0) {
    const Outgoing first = std::move(path.unacknowledged.front());
    path.unacknowledged.pop_front();
    path.in_flight -= first.bytes();
    path.taken_bytes += first.bytes();
    finish(peer, first);
  }
  measure(path, Clock::now());
}

void TcpTransport::closed(uint32_t rank, uint32_t path, uint32_t life, uint32_t count) {
  peers_[rank]->closings.push_back({path, life, count});
}

void TcpTransport::lose(Peer& peer, uint32_t number, const std::string& why) {
  Path& path = peer.paths[number];
  if (!path.up) return;
  if (peer.closed.size() >= lives_max_)
    return break_off(peer, fmt::format("its paths are lost without end; now: {}", why));
  path.up = false;
  path.why = why;
  path.lost_since = Clock::now();
  path.told_of_loss = false;
  path.facts->up = false;
  path.facts->losses.fetch_add(1, std::memory_order_relaxed);
  const uint32_t count = peer.receiver->taken(number);
  // From here on nothing of it lands.
  (void)shutdown(path.socket.native(), SHUT_RDWR);
  path.socket.close();
  peer.receiver->reopen(number);
  Retired retired{.path = number, .life = path.life, .frames = std::move(path.unacknowledged)};
  std::deque<Outgoing> waiting = std::move(path.outgoing), again;
  peer.queued -= static_cast<uint32_t>(waiting.size());
  for (size_t index = 0; index < waiting.size(); ++index)
    (index < path.numbered ? retired.frames : again).push_back(std::move(waiting[index]));
  path.unacknowledged.clear();
  path.outgoing.clear();
  path.numbered = path.sent = 0;
  path.queued = path.in_flight = path.taken_bytes = 0;
  path.sequence = 0;
  path.has_room = path.has_bytes = path.tells = path.in_system = false;
  // News of closed paths may come twice, and waits for none.
  for (auto each = retired.frames.begin(); each != retired.frames.end();) {
    const PutFrameKind kind = each->frame.kind;
    if (kind == PutFrameKind::closed) again.push_back(*each);
    each = kind == PutFrameKind::closed || kind == PutFrameKind::taken ? retired.frames.erase(each)
                                                                       : each + 1;
  }
  peer.retired.push_back(std::move(retired));
  spread(peer);
  announce_closed(peer, number, path.life, count);
  for (Outgoing& outgoing : again) send_again(peer, std::move(outgoing));
  connector_->make_again(peer.rank, number);
  if (hot_ == &path) hot_polls_ = 0;
}

void TcpTransport::announce_closed(Peer& peer, uint32_t number, uint32_t life, uint32_t count) {
  peer.closed.emplace(number, life);
  send_again(peer, {.frame = {.kind = PutFrameKind::closed,
                              .epoch = epoch_,
                              .turn = count,
                              .path = number,
                              .life = life},
                    .header = {},
                    .pieces = {},
                    .turn = 0,
                    .is_request = false,
                    .origin = 0});
}

/// Sends a frame over a path that is up, or once one is. The peer does not have it, or does not
/// mind.
void TcpTransport::send_again(Peer& peer, Outgoing outgoing) {
  PutFrame& frame = outgoing.frame;
  if (frame.kind == PutFrameKind::taken) return;
  if (!any_up(peer)) {
    peer.held.push_back(std::move(outgoing));
    return;
  }
  if (frame.kind == PutFrameKind::put || frame.kind == PutFrameKind::put_inline)
    frame.origin = static_cast<uint8_t>(outgoing.origin + 1);
  append(peer, path_for(peer, frame.queue, outgoing.bytes()), std::move(outgoing));
}

/// The peer has closed a path.
void TcpTransport::deal_with(Peer& peer, const Closing& closing) {
  Path& path = peer.paths[closing.path];
  if (path.up && path.life == closing.life) lose(peer, closing.path, "the peer has given it up");
  const bool is_news = !peer.broken && !peer.closed.contains({closing.path, closing.life});
  if (is_news && peer.closed.size() >= lives_max_)
    return break_off(peer, "it closes paths that never were");
  // A life that this end never had: the peer must not wait for it.
  if (is_news) announce_closed(peer, closing.path, closing.life, 0);
  const auto retired = std::ranges::find_if(peer.retired, [&](const Retired& each) {
    return each.path == closing.path && each.life == closing.life;
  });
  if (retired == peer.retired.end()) return;
  std::deque<Outgoing> frames = std::move(retired->frames);
  peer.retired.erase(retired);
  for (Outgoing& outgoing : frames) {
    const bool was_taken = static_cast<int32_t>(outgoing.frame.sequence - closing.count) < 0;
    if (was_taken) {
      finish(peer, outgoing);
    } else {
      send_again(peer, std::move(outgoing));
    }
  }
}

void TcpTransport::adopt(TcpConnector::Made made) {
  Peer& peer = *peers_[made.rank];
  if (peer.broken || peer.left) return;
  if (peer.closed.contains({made.path, made.life})) {
    // It was told that nothing of this life will be taken.
    connector_->make_again(made.rank, made.path);
    return;
  }
  Path& path = peer.paths[made.path];
  lose(peer, made.path, "the peer has made it anew");
  if (peer.broken) return;
  path.socket = std::move(made.socket);
  path.life = made.life;
  path.up = path.has_room = path.has_bytes = true;
  path.acknowledged = peer.receiver->worth_acknowledging(made.path);
  path.moved = awake_.now();
  path.received = path.facts->bytes;
  path.facts->up = true;
  try {
    watch(peer, made.path);
  } catch (const OsError& error) {
    return lose(peer, made.path, error.what());
  }
  if (log_.takes(LogLevel::warning)) {
    log_.write(LogLevel::warning, epoch_,
               path.told_of_loss
                   ? fmt::format("network: path {} to rank {} ({} to {}) is used again", made.path,
                                 peer.rank, path.facts->from, path.facts->to)
                   : fmt::format("network: path {} to rank {} ({} to {}) was lost ({}) and is used "
                                 "again",
                                 made.path, peer.rank, path.facts->from, path.facts->to, path.why));
  }
  path.told_of_loss = true;
  spread(peer);
  for (Outgoing& outgoing : std::exchange(peer.held, {})) send_again(peer, std::move(outgoing));
}

void TcpTransport::look_at_paths(TimePoint now) {
  if (now - last_look_ < kLookAtPaths) return;
  last_look_ = now;
  connector_->step(now);
  for (TcpConnector::Made& made : connector_->take_made()) adopt(std::move(made));
  const bool spreads = now - last_spread_ >= kSpread;
  if (spreads) last_spread_ = now;
  for (const auto& peer : peers_) {
    if (!peer || !peer->acknowledged || peer->broken || peer->left) continue;
    for (uint32_t path = 0; path < peer->paths.size() && !peer->broken; ++path)
      look_at_path(*peer, path, now);
    if (peer->broken) continue;
    if (spreads) spread(*peer);
  }
}

void TcpTransport::look_at_path(Peer& peer, uint32_t number, TimePoint now) {
  Path& path = peer.paths[number];
  if (!path.up) {
    if (path.told_of_loss || now - path.lost_since < kTellLoss) return;
    path.told_of_loss = true;
    const auto others = std::ranges::count_if(peer.paths, [](const Path& of) { return of.up; });
    log_.write(LogLevel::warning, epoch_,
               fmt::format("network: path {} to rank {} ({} to {}) is lost: {}; its queues go on "
                           "over {} others",
                           number, peer.rank, path.facts->from, path.facts->to, path.why, others));
    return;
  }
  if (!path.busy()) path.moved = awake_.now();
  const bool has_others =
      std::ranges::count_if(peer.paths, [](const Path& of) { return of.up; }) > 1;
  if (awake_.now() - path.moved >= stall_ && has_others) {
    lose(peer, number,
         fmt::format("nothing moved for {:.1f} s",
                     std::chrono::duration<double>(awake_.now() - path.moved).count()));
  }
}

/// Returns whether something must be looked at again though nobody rings.
bool TcpTransport::outstanding() const {
  if (connector_->busy()) return true;
  return std::ranges::any_of(peers_, [](const std::unique_ptr<Peer>& peer) {
    if (!peer || !peer->acknowledged || peer->broken || peer->left) return false;
    return std::ranges::any_of(
        peer->paths, [](const Path& path) { return path.up ? path.busy() : !path.told_of_loss; });
  });
}

}  // namespace tokenyard
