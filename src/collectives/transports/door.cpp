#include "collectives/transports/door.hpp"

#include <utility>

namespace tokenyard::collectives {

namespace {

constexpr size_t kEarlyVisitorsMax = 4096;  ///< only members can be early

}  // namespace

Door::Door(const EpochGate& gate, const net::Key& key, const std::string& address,
           net::Sleeper& sleeper, int buffer_bytes)
    : gate_(gate),
      key_(key),
      listener_({.address = address,
                 .first_bytes = kInvitationBytes,
                 .socket_buffer_bytes = buffer_bytes},
                sleeper) {}

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
  for (auto& arrival : listener_.poll(now)) judge(std::move(arrival), guests);
  return guests;
}

void Door::judge(net::PolledListener::Arrival arrival, std::vector<Guest>& guests) {
  const auto invitation = decode_invitation(arrival.first, key_);
  const bool valid = invitation && invitation->kind == InvitationKind::tcp &&
                     invitation->stripes >= 1 && invitation->stripes <= kStripesMax &&
                     invitation->stripe < invitation->stripes && invitation->bytes > 0;
  const Timing timing = valid ? gate_.judge(*invitation) : Timing::never;
  if (timing == Timing::never || early_.size() == kEarlyVisitorsMax) {
    ++refused_;
    return;
  }
  Guest guest{*invitation, welcome(arrival.first, key_), std::move(arrival.socket)};
  (timing == Timing::now ? guests : early_).push_back(std::move(guest));
}

}  // namespace tokenyard::collectives
