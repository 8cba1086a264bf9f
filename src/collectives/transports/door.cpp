#include "collectives/transports/door.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

constexpr size_t kAcceptsMax = 64;          ///< of one look
constexpr size_t kEarlyVisitorsMax = 4096;  ///< only members can be early

}  // namespace

Door::Door(const EpochGate& gate, const net::Key& key, const std::string& address,
           net::Sleeper& sleeper, int buffer_bytes)
    : gate_(gate),
      key_(key),
      listening_(net::listen_at(address)),
      sleeper_(sleeper),
      buffer_bytes_(buffer_bytes) {
  sleeper_.watch_arrivals(listening_.socket.native());
}

std::vector<Guest> Door::poll(WireTime now) {
  std::vector<Guest> guests;
  for (Guest& guest : std::exchange(early_, {})) {
    switch (gate_.judge(guest.invitation)) {
      case Timing::now:
        guests.push_back(std::move(guest));
        break;
      case Timing::early:
        early_.push_back(std::move(guest));
        break;
      case Timing::never:
        ++refused_;
        break;
    }
  }
  accept_all(now);
  std::erase_if(strangers_, [&](Stranger& stranger) { return hear(stranger, now, guests); });
  return guests;
}

void Door::accept_all(WireTime now) {
  short_ = false;
  for (size_t count = 0; count < kAcceptsMax; ++count) {
    FileDescriptor socket = net::accept_from(listening_.socket);
    if (!socket) {
      short_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      return;
    }
    net::tune(socket, buffer_bytes_);
    try {
      sleeper_.watch_arrivals_and_room(socket.native());
    } catch (const OsError&) {
      continue;  // It will try again.
    }
    if (strangers_.size() == kStrangersMax) {
      strangers_.pop_front();
      ++refused_;
    }
    strangers_.push_back({.socket = std::move(socket), .since = now});
  }
}

bool Door::hear(Stranger& stranger, WireTime now, std::vector<Guest>& guests) {
  const net::Moved moved =
      net::receive_now(stranger.socket, std::span(stranger.bytes).subspan(stranger.got));
  stranger.got += moved.bytes;
  if (stranger.got < stranger.bytes.size()) {
    const bool gone = moved.over || now - stranger.since > kStrangerTime;
    refused_ += gone;
    return gone;
  }
  const auto invitation = decode_invitation(stranger.bytes, key_);
  const bool valid = invitation && invitation->kind == InvitationKind::tcp &&
                     invitation->stripes >= 1 && invitation->stripes <= kStripesMax &&
                     invitation->stripe < invitation->stripes && invitation->bytes > 0;
  const Timing timing = valid ? gate_.judge(*invitation) : Timing::never;
  if (timing == Timing::never || early_.size() == kEarlyVisitorsMax) {
    ++refused_;
    return true;
  }
  Guest guest{*invitation, welcome(stranger.bytes, key_), std::move(stranger.socket)};
  (timing == Timing::now ? guests : early_).push_back(std::move(guest));
  return true;
}

}  // namespace tokenyard::collectives
