#include "fabric/proxy/tcp_transport.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/os_failure.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard {

namespace {

using Pieces = std::array<std::span<const std::byte>, 2>;

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
      events_(epoll_create1(EPOLL_CLOEXEC)),
      peers_(options.connections.size()) {
  if (!events_) os_failed("epoll_create1");
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    auto& connections = options.connections[rank];
    if (connections.empty()) continue;
    peers_[rank] = std::make_unique<Peer>();
    Peer& peer = *peers_[rank];
    peer.rank = rank;
    peer.sent.resize(queues_);
    peer.unsent.resize(size_t{queues_} * kSlots);
    peer.receiver = std::make_unique<PeerReceiver>(
        PeerReceiver::Options{.peer = rank,
                              .epoch = epoch_,
                              .queues = queues_,
                              .paths = static_cast<uint32_t>(connections.size())},
        regions_, static_cast<ReceiverListener&>(*this));
    for (FileDescriptor& socket : connections) {
      epoll_event event{};
      event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
      event.data.u64 = uint64_t{rank} << 32 | peer.paths.size();
      if (epoll_ctl(events_.native(), EPOLL_CTL_ADD, socket.native(), &event) != 0)
        os_failed("epoll_ctl");
      peer.paths.emplace_back();
      peer.paths.back().socket = std::move(socket);
    }
  }
}

bool TcpTransport::post(const PostedRequest& request) {
  Peer& peer = *peers_[request.peer];
  if (peer.broken || peer.queued >= kQueuedMax) return false;
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
      enqueue(peer, own_path(peer, request.queue), frame, {}, request.turn, true);
      break;
    }
    case NetworkRequest::Kind::signal:
      enqueue(peer, own_path(peer, request.queue),
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

uint32_t TcpTransport::path_for(const Peer& peer, uint32_t queue, uint64_t bytes) const {
  uint32_t chosen = own_path(peer, queue);
  if (bytes <= kShortBytes) return chosen;
  for (uint32_t path = 0; path < peer.paths.size(); ++path)
    if (peer.paths[path].queued < peer.paths[chosen].queued) chosen = path;
  return chosen;
}

void TcpTransport::enqueue(Peer& peer, uint32_t number, PutFrame frame, const Pieces& pieces,
                           uint32_t turn, bool is_request) {
  Path& path = peer.paths[number];
  frame.epoch = epoch_;
  frame.sequence = path.sequence++;
  path.outgoing.push_back({.header = encode(frame),
                           .pieces = pieces,
                           .queue = frame.queue,
                           .turn = turn,
                           .is_request = is_request});
  path.queued += path.outgoing.back().bytes();
  ++peer.queued;
  if (!is_request) return;
  ++peer.unsent[frame.queue * kSlots + turn % kSlots];
  if (frame.kind == PutFrameKind::put || frame.kind == PutFrameKind::put_inline)
    ++peer.sent[frame.queue][number];
}

bool TcpTransport::settle(uint32_t rank, uint32_t queue, uint32_t turn) {
  Peer& peer = *peers_[rank];
  if (peer.broken) return false;
  enqueue(peer, own_path(peer, queue),
          {.kind = PutFrameKind::settle,
           .queue = static_cast<uint16_t>(queue),
           .turn = turn,
           .counts = peer.sent[queue]},
          {}, turn, false);
  return true;
}

void TcpTransport::answer(uint32_t rank, PutFrame frame) {
  Peer& peer = *peers_[rank];
  if (peer.broken) return;
  if (++peer.answers > kAnswersMax) throw net::ProtocolError("asks and does not read the answers");
  enqueue(peer, own_path(peer, frame.queue), frame, {}, 0, false);
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
  if (hot_polls_ % kPollsPerEvents == 0) look_for_events();
  bool moved = false;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    for (uint32_t path = 0; path < peer->paths.size() && !peer->broken; ++path) {
      if (peer->paths[path].has_room && !peer->paths[path].outgoing.empty())
        moved |= send(*peer, peer->paths[path]);
      if (!peer->broken && peer->paths[path].has_bytes) moved |= receive(*peer, path);
    }
  }
  return moved;
}

void TcpTransport::look_for_events() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(events_.native(), events.data(), static_cast<int>(events.size()), 0);
  for (int index = 0; index < count; ++index) {
    const epoll_event& event = events[static_cast<size_t>(index)];
    Path& path = peers_[event.data.u64 >> 32]->paths[event.data.u64 & 0xffffffff];
    if ((event.events & ~uint32_t{EPOLLOUT}) != 0) path.has_bytes = true;
    if ((event.events & ~uint32_t{EPOLLIN}) != 0) path.has_room = true;
  }
}

bool TcpTransport::send(Peer& peer, Path& path) {
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
  for (const Outgoing& outgoing : path.outgoing) {
    if (count + 3 > kVectors) break;
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
    break_off(peer, fmt::format("its connection has broken: {}", std::strerror(errno)));
    return true;
  }
  if (static_cast<size_t>(sent) < wanted) path.has_room = false;
  take_off(peer, path, static_cast<size_t>(sent));
  return true;
}

void TcpTransport::take_off(Peer& peer, Path& path, size_t bytes) {
  path.queued -= bytes;
  path.sent += bytes;
  while (!path.outgoing.empty() && path.sent >= path.outgoing.front().bytes()) {
    const Outgoing& first = path.outgoing.front();
    path.sent -= first.bytes();
    --peer.queued;
    const uint32_t queue = first.queue, turn = first.turn;
    const bool is_request = first.is_request;
    path.outgoing.pop_front();
    if (!is_request) {
      if (peer.answers != 0) --peer.answers;
    } else if (--peer.unsent[queue * kSlots + turn % kSlots] == 0) {
      listener_->completed(peer.rank, queue, turn);
    }
  }
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
    break_off(peer, fmt::format("its connection has broken: {}", std::strerror(errno)));
    return true;
  }
  if (got == 0) {
    break_off(peer, "it has closed its connection");
    return true;
  }
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
  drop(peer.rank);
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

void TcpTransport::drop(uint32_t rank) {
  Peer& peer = *peers_[rank];
  for (Path& path : peer.paths) {
    path.outgoing.clear();
    path.queued = path.sent = 0;
    path.has_room = path.has_bytes = false;
    if (path.socket) shutdown(path.socket.native(), SHUT_RDWR);
    path.socket.close();
  }
  peer.queued = peer.answers = 0;
  std::ranges::fill(peer.unsent, uint16_t{0});
  if (!peer.broken) peer.broken = "it is gone";
}

std::optional<std::string> TcpTransport::broken(uint32_t rank) const {
  return peers_[rank]->broken;
}

void TcpTransport::sleep(std::chrono::nanoseconds at_most, int waker) {
  std::array<pollfd, 2> descriptors{pollfd{events_.native(), POLLIN, 0}, pollfd{waker, POLLIN, 0}};
  const auto seconds = std::chrono::floor<std::chrono::seconds>(at_most);
  const timespec time{seconds.count(), (at_most - seconds).count()};
  hot_polls_ = 0;
  (void)ppoll(descriptors.data(), descriptors.size(), &time, nullptr);
}

void TcpTransport::close() {
  for (const auto& peer : peers_)
    if (peer) drop(peer->rank);
}

}  // namespace tokenyard
