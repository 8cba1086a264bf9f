#include "fabric/proxy/tcp_transport.hpp"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/os_failure.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard {

namespace {

using Pieces = std::array<std::span<const std::byte>, 2>;

constexpr uint64_t kNewConnection = ~uint64_t{0};
constexpr std::chrono::milliseconds kLookAtSystems{100};

/// Returns why a connection has broken. The system may notice before this thread does that nothing
/// moves, where the thread has not run for a while.
std::string cause_of(int error) {
  const char* const text = std::strerror(error);
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)
    return fmt::format("it has taken nothing for so long that the system gave up: {}", text);
  return fmt::format("its connection has broken: {}", text);
}

/// Returns bytes `begin` to `end` of two pieces, one behind the other.
Pieces part_of(const Pieces& pieces, uint64_t begin, uint64_t end) {
  Pieces part;
  uint64_t at = 0;
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    const uint64_t until = at + pieces[piece].size();
    const uint64_t from = std::max(begin, at), to = std::min(end, until);
    if (from < to) part[piece] = pieces[piece].subspan(from - at, to - from);
    at = until;
  }
  return part;
}

}  // namespace

TcpTransport::TcpTransport(Options options)
    : epoch_(options.epoch),
      queues_(options.queues),
      stall_(options.stall),
      lives_max_(options.lives_max),
      log_(options.rank),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      connector_(std::move(options.connector)),
      peers_(options.connections.size()) {
  if (!events_) os_failed("epoll_create1");
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    auto& connections = options.connections[rank];
    if (connections.empty()) continue;
    peers_[rank] = std::make_unique<Peer>();
    Peer& peer = *peers_[rank];
    peer.rank = rank;
    peer.acknowledged = !options.acknowledged.empty() && options.acknowledged[rank];
    peer.sent.resize(queues_);
    peer.unsent.resize(size_t{queues_} * kSlots);
    peer.receiver = std::make_unique<PeerReceiver>(
        PeerReceiver::Options{.peer = rank,
                              .epoch = epoch_,
                              .queues = queues_,
                              .paths = static_cast<uint32_t>(connections.size()),
                              .acknowledged = peer.acknowledged},
        regions_, static_cast<ReceiverListener&>(*this));
    for (uint32_t number = 0; number < connections.size(); ++number) {
      Facts& facts = facts_.emplace_back();
      facts.rank = rank;
      facts.number = number;
      if (connector_) std::tie(facts.from, facts.to) = connector_->ends_of(rank, number);
      Path& path = peer.paths.emplace_back();
      path.socket = std::move(connections[number]);
      path.facts = &facts;
      path.moved = awake_.now();
      watch(peer, number);
    }
    spread(peer);
  }
  if (std::ranges::find(options.acknowledged, true) == options.acknowledged.end())
    connector_.reset();
  if (!connector_) return;
  for (const int listening : connector_->descriptors()) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kNewConnection;
    if (epoll_ctl(events_.native(), EPOLL_CTL_ADD, listening, &event) != 0) os_failed("epoll_ctl");
  }
}

void TcpTransport::watch(const Peer& peer, uint32_t path) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = uint64_t{peer.rank} << 32 | path;
  const int socket = peer.paths[path].socket.native();
  if (epoll_ctl(events_.native(), EPOLL_CTL_ADD, socket, &event) != 0) os_failed("epoll_ctl");
}

bool TcpTransport::post(const PostedRequest& request) {
  Peer& peer = *peers_[request.peer];
  if (peer.broken || peer.left || peer.queued >= kQueuedMax || !any_up(peer)) return false;
  switch (request.kind) {
    case NetworkRequest::Kind::put:
      post_put(peer, request);
      break;
    case NetworkRequest::Kind::put_inline: {
      PutFrame frame{.kind = PutFrameKind::put_inline,
                     .inline_bytes = static_cast<uint8_t>(request.pieces[0].size()),
                     .queue = static_cast<uint16_t>(request.queue),
                     .key = request.target.key,
                     .offset = request.target.offset};
      std::ranges::copy(request.pieces[0], frame.inlined.begin());
      enqueue(peer, peer.path_of[request.queue], frame, {}, request.turn, true);
      break;
    }
    case NetworkRequest::Kind::signal:
      enqueue(peer, peer.path_of[request.queue],
              {.kind = PutFrameKind::signal,
               .queue = static_cast<uint16_t>(request.queue),
               .key = request.target.key,
               .offset = request.target.offset,
               .addend = request.addend,
               .counts = peer.sent[request.queue]},
              {}, request.turn, true);
      break;
  }
  return true;
}

void TcpTransport::post_put(Peer& peer, const PostedRequest& request) {
  const uint64_t whole = request.bytes();
  PutFrame frame{.kind = PutFrameKind::put,
                 .queue = static_cast<uint16_t>(request.queue),
                 .key = request.target.key,
                 .whole_offset = request.target.offset,
                 .whole_bytes = static_cast<uint32_t>(whole)};
  uint64_t begin = 0;
  do {
    const uint64_t end = std::min(whole, begin + kPartBytes);
    frame.bytes = static_cast<uint32_t>(end - begin);
    frame.offset = request.target.offset + begin;
    enqueue(peer, path_for(peer, request.queue, end - begin), frame,
            part_of(request.pieces, begin, end), request.turn, true);
    begin = end;
  } while (begin < whole);
}

void TcpTransport::enqueue(Peer& peer, uint32_t number, PutFrame frame, const Pieces& pieces,
                           uint32_t turn, bool is_request) {
  frame.epoch = epoch_;
  append(peer, number,
         {.frame = frame,
          .header = {},
          .pieces = pieces,
          .turn = turn,
          .is_request = is_request,
          .origin = static_cast<uint8_t>(number)});
  if (!is_request) return;
  ++peer.unsent[frame.queue * kSlots + turn % kSlots];
  if (frame.kind == PutFrameKind::put || frame.kind == PutFrameKind::put_inline)
    ++peer.sent[frame.queue][number];
}

/// Acknowledgements come before all that has no number yet.
void TcpTransport::append(Peer& peer, uint32_t number, Outgoing outgoing) {
  Path& path = peer.paths[number];
  if (!path.busy() && !path.in_system) path.moved = awake_.now();
  if (peer.acknowledged && !path.busy()) {
    path.taken_bytes = 0;
    path.measured_since = Clock::now();
  }
  path.queued += outgoing.bytes();
  ++peer.queued;
  const bool first = outgoing.frame.kind == PutFrameKind::taken;
  const auto at =
      first ? path.outgoing.begin() + static_cast<ptrdiff_t>(path.numbered) : path.outgoing.end();
  path.outgoing.insert(at, std::move(outgoing));
}

bool TcpTransport::settle(uint32_t rank, uint32_t queue, uint32_t turn) {
  Peer& peer = *peers_[rank];
  if (peer.broken || peer.left || !any_up(peer)) return false;
  enqueue(peer, peer.path_of[queue],
          {.kind = PutFrameKind::settle,
           .queue = static_cast<uint16_t>(queue),
           .turn = turn,
           .counts = peer.sent[queue]},
          {}, turn, false);
  return true;
}

void TcpTransport::answer(uint32_t rank, PutFrame frame) {
  Peer& peer = *peers_[rank];
  if (peer.broken || peer.left) return;
  if (++peer.answers > kAnswersMax) throw net::ProtocolError("asks and does not read the answers");
  if (!any_up(peer)) {
    frame.epoch = epoch_;
    peer.held.push_back(
        {.frame = frame, .header = {}, .pieces = {}, .turn = 0, .is_request = false, .origin = 0});
    return;
  }
  enqueue(peer, peer.path_of[frame.queue], frame, {}, 0, false);
}

void TcpTransport::refuse(uint32_t peer, uint32_t queue, NetworkCheck check,
                          const NetworkRefusal& refusal) {
  answer(peer, {.kind = PutFrameKind::refusal,
                .queue = static_cast<uint16_t>(queue),
                .check = check,
                .refusal = refusal});
}

void TcpTransport::answer_settled(uint32_t peer, uint32_t queue, uint32_t turn) {
  answer(peer,
         {.kind = PutFrameKind::settled, .queue = static_cast<uint16_t>(queue), .turn = turn});
}

void TcpTransport::refused(uint32_t peer, uint32_t queue, NetworkCheck check,
                           const NetworkRefusal& refusal) {
  listener_->refused(peer, queue, check, refusal);
}

void TcpTransport::settled(uint32_t peer, uint32_t queue, uint32_t turn) {
  listener_->settled(peer, queue, turn);
}

bool TcpTransport::poll() {
  // An answer often comes where the last bytes came: a read finds it without a call for events.
  if (hot_polls_ != 0) {
    --hot_polls_;
    hot_->has_bytes |= static_cast<bool>(hot_->socket);
  }
  if (hot_polls_ % kPollsPerEvents == 0) {
    look_for_events();
    const TimePoint now = Clock::now();
    awake_.tick(now);
    if (now - last_look_at_systems_ >= kLookAtSystems) {
      last_look_at_systems_ = now;
      look_at_systems();
    }
    if (connector_) look_at_paths(now);
  }
  bool moved = false;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    for (uint32_t number = 0; number < peer->paths.size() && !peer->broken; ++number) {
      Path& path = peer->paths[number];
      if (!path.socket) continue;
      if (path.has_room && !path.outgoing.empty()) moved |= send(*peer, number);
      if (!peer->broken && path.has_bytes) moved |= receive(*peer, number);
      if (!peer->broken && peer->acknowledged) acknowledge(*peer, number);
    }
    while (!peer->closings.empty() && !peer->broken) {
      const std::vector<Closing> closings = std::exchange(peer->closings, {});
      for (const Closing& closing : closings)
        if (!peer->broken) deal_with(*peer, closing);
      moved = true;
    }
  }
  return moved;
}

void TcpTransport::look_for_events() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(events_.native(), events.data(), static_cast<int>(events.size()), 0);
  if (count < 0 && errno != EINTR) os_failed("epoll_wait");
  for (int index = 0; index < count; ++index) {
    const epoll_event& event = events[static_cast<size_t>(index)];
    if (event.data.u64 == kNewConnection) {
      last_look_ = {};
      continue;
    }
    Path& path = peers_[event.data.u64 >> 32]->paths[event.data.u64 & 0xffffffff];
    if ((event.events & ~uint32_t{EPOLLOUT}) != 0) path.has_bytes = true;
    if ((event.events & ~uint32_t{EPOLLIN}) != 0) path.has_room = true;
  }
}

bool TcpTransport::send(Peer& peer, uint32_t number) {
  Path& path = peer.paths[number];
  constexpr size_t kVectors = 96;
  std::array<iovec, kVectors> vectors;
  size_t count = 0, wanted = 0, skip = path.sent;
  const auto add = [&](std::span<const std::byte> bytes) {
    const size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    if (skipped == bytes.size()) return;
    vectors[count++] = {const_cast<std::byte*>(bytes.data()) + skipped, bytes.size() - skipped};
    wanted += bytes.size() - skipped;
  };
  for (size_t index = 0; index < path.outgoing.size(); ++index) {
    if (count + 3 > kVectors || wanted >= kSentAtOnce) break;
    Outgoing& outgoing = path.outgoing[index];
    if (index == path.numbered) {
      outgoing.frame.sequence = path.sequence++;
      outgoing.header = encode(outgoing.frame);
      ++path.numbered;
    }
    add(outgoing.header);
    for (const auto& piece : outgoing.pieces) add(piece);
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(path.socket.native(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EINTR) return true;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      path.has_room = false;
      return false;
    }
    fail(peer, number, cause_of(errno));
    return true;
  }
  if (static_cast<size_t>(sent) < wanted) path.has_room = false;
  if (!peer.acknowledged) {
    if (!path.in_system) path.moved = awake_.now();
    path.in_system = true;
  }
  path.facts->bytes.fetch_add(static_cast<uint64_t>(sent), std::memory_order_relaxed);
  take_off(peer, path, static_cast<size_t>(sent));
  return true;
}

void TcpTransport::take_off(Peer& peer, Path& path, size_t bytes) {
  path.queued -= bytes;
  path.sent += bytes;
  while (!path.outgoing.empty() && path.sent >= path.outgoing.front().bytes()) {
    Outgoing first = std::move(path.outgoing.front());
    path.outgoing.pop_front();
    --path.numbered;
    path.sent -= first.bytes();
    --peer.queued;
    if (first.frame.kind == PutFrameKind::taken) {
      path.tells = false;
    } else if (peer.acknowledged) {
      path.in_flight += first.bytes();
      path.unacknowledged.push_back(std::move(first));
    } else {
      finish(peer, first);
    }
  }
}

void TcpTransport::finish(Peer& peer, const Outgoing& outgoing) {
  if (!outgoing.is_request) {
    if (outgoing.frame.kind != PutFrameKind::closed && peer.answers != 0) --peer.answers;
    return;
  }
  if (--peer.unsent[outgoing.frame.queue * kSlots + outgoing.turn % kSlots] == 0)
    listener_->completed(peer.rank, outgoing.frame.queue, outgoing.turn);
}

bool TcpTransport::receive(Peer& peer, uint32_t number) {
  constexpr size_t kAtOnce = size_t{2} << 20;
  Path& path = peer.paths[number];
  const auto room = peer.receiver->room(number);
  std::array<iovec, 2> vectors;
  size_t count = 0, wanted = 0;
  for (const auto& span : room) {
    if (span.empty()) continue;
    const size_t bytes = std::min(span.size(), kAtOnce);
    vectors[count++] = {span.data(), bytes};
    wanted += bytes;
    if (bytes < span.size()) break;
  }
  if (count == 0) return false;  // It stands still.
  const ssize_t got = readv(path.socket.native(), vectors.data(), static_cast<int>(count));
  if (got < 0) {
    if (errno == EINTR) return true;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      path.has_bytes = false;
      return false;
    }
    fail(peer, number, cause_of(errno));
    return true;
  }
  if (got == 0) {
    fail(peer, number, "it has closed its connection");
    return true;
  }
  path.moved = awake_.now();
  hot_ = &path;
  hot_polls_ = kHotPolls;
  // Bytes that come later are an event of their own.
  if (static_cast<size_t>(got) < wanted) path.has_bytes = false;
  try {
    peer.receiver->received(number, static_cast<size_t>(got));
    peer.receiver->resume();
  } catch (const net::ProtocolError& error) {
    break_off(peer, fmt::format("it {}", error.what()));
  }
  return true;
}

void TcpTransport::break_off(Peer& peer, const std::string& why) {
  peer.broken = why;
  drop(peer.rank, false);
}

void TcpTransport::register_memory(MemoryKey key, std::span<std::byte> memory) {
  regions_.open(key, memory);
}

void TcpTransport::withdraw(uint32_t region) {
  regions_.close(region);
  for (const auto& peer : peers_) {
    if (!peer || peer->broken) continue;
    try {
      peer->receiver->withdraw(region);
      peer->receiver->resume();
    } catch (const net::ProtocolError& error) {
      break_off(*peer, fmt::format("it {}", error.what()));
    }
  }
}

void TcpTransport::drop(uint32_t rank, bool left) {
  Peer& peer = *peers_[rank];
  if (connector_)
    connector_->turn_away(rank, encode({.kind = PutFrameKind::given_up, .epoch = epoch_}));
  for (Path& path : peer.paths) {
    path.outgoing.clear();
    path.unacknowledged.clear();
    path.queued = path.in_flight = path.numbered = path.sent = 0;
    path.has_room = path.in_system = false;
    path.told_of_loss = true;
    // A frame that was sent in part is the last one.
    if (path.socket) shutdown(path.socket.native(), left ? SHUT_WR : SHUT_RDWR);
    if (left) continue;
    path.has_bytes = path.up = path.facts->up = false;
    path.socket.close();
  }
  peer.queued = peer.answers = 0;
  peer.retired.clear();
  peer.held.clear();
  std::ranges::fill(peer.unsent, uint16_t{0});
  peer.left = true;
  if (!peer.broken && !left) peer.broken = "it is gone";
}

std::optional<std::string> TcpTransport::broken(uint32_t rank) const {
  const Peer& peer = *peers_[rank];
  if (peer.broken) return peer.broken;
  if (any_up(peer)) return std::nullopt;
  return peer.paths.front().why;
}

/// Bytes that this system has taken may wait there for the peer's. Between ranks with several
/// interfaces, acknowledgements say more.
void TcpTransport::look_at_systems() {
  for (const auto& peer : peers_) {
    if (!peer || peer->acknowledged) continue;
    for (Path& path : peer->paths) {
      if (!path.in_system || !path.socket) continue;
      int waiting = 0;
      if (ioctl(path.socket.native(), SIOCOUTQ, &waiting) != 0) continue;
      const uint64_t received = path.facts->bytes - static_cast<uint64_t>(waiting);
      if (received != path.received) path.moved = awake_.now();
      path.received = received;
      path.in_system = waiting != 0;
    }
  }
}

std::chrono::nanoseconds TcpTransport::silent_for(uint32_t rank) const {
  const Peer& peer = *peers_[rank];
  std::chrono::nanoseconds longest{0};
  if (peer.broken || peer.left) return longest;
  for (const Path& path : peer.paths)
    if (path.up && (path.busy() || path.in_system))
      longest = std::max(longest, awake_.now() - path.moved);
  return longest;
}

void TcpTransport::sleep(std::chrono::nanoseconds at_most, int waker) {
  if (connector_ && outstanding())
    at_most = std::min<std::chrono::nanoseconds>(at_most, kLookAtPaths);
  for (const auto& peer : peers_) {
    if (!peer || peer->acknowledged) continue;
    if (std::ranges::any_of(peer->paths, &Path::in_system))
      at_most = std::min<std::chrono::nanoseconds>(at_most, kLookAtSystems);
  }
  std::array<pollfd, 2> descriptors{pollfd{events_.native(), POLLIN, 0}, pollfd{waker, POLLIN, 0}};
  const auto seconds = std::chrono::floor<std::chrono::seconds>(at_most);
  const timespec time{seconds.count(), (at_most - seconds).count()};
  hot_polls_ = 0;
  (void)ppoll(descriptors.data(), descriptors.size(), &time, nullptr);
}

void TcpTransport::close() {
  for (const auto& peer : peers_)
    if (peer) drop(peer->rank, false);
}

}  // namespace tokenyard
