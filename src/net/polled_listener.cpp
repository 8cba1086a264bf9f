#include "net/polled_listener.hpp"

#include <cerrno>
#include <span>
#include <utility>

#include "net/fork_guard.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::net {

namespace {

constexpr size_t kAcceptsMax = 64;  ///< accepts per poll

}  // namespace

PolledListener::PolledListener(const PolledListenerOptions& options, Poller& poller)
    : listening_(listen_at(options.address)),
      poller_(poller),
      first_bytes_(options.first_bytes),
      buffer_bytes_(options.socket_buffer_bytes) {
  poller_.watch_arrivals(listening_.socket.native());
}

std::vector<PolledListener::Arrival> PolledListener::poll(Time now) {
  accept_all(now);
  std::vector<Arrival> arrivals;
  std::erase_if(pending_, [&](Pending& pending) { return on_message(pending, now, arrivals); });
  return arrivals;
}

void PolledListener::accept_all(Time now) {
  short_ = false;
  for (size_t count = 0; count < kAcceptsMax; ++count) {
    FileDescriptor socket = accept_socket(listening_.socket.native());
    if (!socket) {
      short_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      return;
    }
    tune(socket, buffer_bytes_);
    try {
      poller_.watch_arrivals_and_room(socket.native());
    } catch (const OsError&) {
      continue;  // the peer will connect again
    }
    if (pending_.size() == kPendingMax) {
      pending_.pop_front();
      ++dropped_;
    }
    pending_.push_back({std::move(socket), now, std::vector<std::byte>(first_bytes_), 0});
  }
}

bool PolledListener::on_message(Pending& pending, Time now, std::vector<Arrival>& arrivals) {
  const Moved moved = receive_now(pending.socket, std::span(pending.bytes).subspan(pending.got));
  pending.got += moved.bytes;
  if (pending.got == pending.bytes.size()) {
    arrivals.push_back({std::move(pending.socket), std::move(pending.bytes)});
    return true;
  }
  const bool gone = moved.over || now - pending.since > kPendingTime;
  dropped_ += gone;
  return gone;
}

}  // namespace tokenyard::net
