// How peers are met, and how they are lost: to a failed operation, to silence, or by a goodbye.
#include <algorithm>
#include <utility>

#include "libfabric/libfabric_transport.hpp"

namespace tokenyard::libfabric {

namespace {

constexpr std::chrono::seconds kCloseMax{1};

}  // namespace

bool LibfabricTransport::meet() {
  poll();
  return !missing();
}

std::optional<std::pair<uint32_t, std::string>> LibfabricTransport::missing() const {
  for (const auto& peer : peers_) {
    if (!peer) continue;
    if (!peer->met || peer->broken)
      return std::pair(peer->rank, peer->broken.value_or("it has not answered"));
    // Nobody else moves what this rank still has to say.
    if (peer->sends != 0 || !peer->messages.empty())
      return std::pair(peer->rank, "it takes nothing");
  }
  return std::nullopt;
}

void LibfabricTransport::stop_sending(Peer& peer) {
  for (Writing& writing : writings_)
    if (writing.peer == peer.rank) writing.reported = false;
  for (Queue& queue : peer.queues) queue.parts.clear();
  peer.parts = peer.answers = 0;
  peer.messages.clear();
  peer.remotes.clear();
  peer.probing = peer.unanswered = false;
  // It answers no question any more.
  for (Closing& closing : closing_) closing.peers.erase(peer.rank);
  std::erase_if(closing_, [](const Closing& closing) { return closing.peers.empty(); });
}

void LibfabricTransport::break_off(Peer& peer, const std::string& why) {
  peer.deaf = true;
  if (peer.broken) return;
  peer.broken = why;
  peer.facts->up = false;
  stop_sending(peer);
  say_goodbye(peer);
}

/// Nothing comes behind this message.
void LibfabricTransport::say_goodbye(Peer& peer) {
  if (peer.said_goodbye) return;
  if (!peer.messages.empty() && peer.messages.back().message.kind == MessageKind::given_up) return;
  peer.messages.push_back({.message = {.kind = MessageKind::given_up}});
}

void LibfabricTransport::drop(uint32_t rank, bool left) {
  Peer& peer = *peers_[rank];
  if (!left) return break_off(peer, "it is gone");
  stop_sending(peer);
  peer.left = true;
}

std::optional<std::string> LibfabricTransport::broken(uint32_t rank) const {
  return peers_[rank]->broken;
}

std::chrono::nanoseconds LibfabricTransport::silent_for(uint32_t rank) const {
  const Peer& peer = *peers_[rank];
  if (peer.broken || peer.left || !peer.busy()) return {};
  return awake_.now() - peer.moved;
}

void LibfabricTransport::look_at_peers() {
  for (const auto& peer : peers_) {
    if (!peer || peer->broken || peer->left) continue;
    const auto silent = awake_.now() - peer->moved;
    const bool closes = std::ranges::any_of(
        closing_, [&](const Closing& closing) { return closing.peers.contains(peer->rank); });
    if (closes && silent >= kReleaseStalls * place_.stall) {
      break_off(*peer, "it does not let go of memory that was deregistered");
      continue;
    }
    if ((!peer->unanswered && !closes) || peer->probing || silent < place_.stall) continue;
    peer->unanswered = false;
    peer->probing = true;
    // `moved` stays: until the answer comes, nothing has moved.
    peer->messages.push_back({.message = {.kind = MessageKind::probe}});
  }
}

void LibfabricTransport::close() {
  for (const auto& peer : peers_)
    if (peer) say_goodbye(*peer);
  // A peer answers with the last message that it sends to this endpoint.
  const TimePoint until = Clock::now() + kCloseMax;
  const auto all_gone = [&] {
    return std::ranges::all_of(peers_, [](const auto& peer) {
      return !peer || peer->deaf || (peer->broken && peer->sends == 0 && peer->messages.empty());
    });
  };
  while (!all_gone() && Clock::now() < until) poll();
  for (const auto& peer : peers_) {
    if (!peer) continue;
    stop_sending(*peer);
    peer->deaf = true;
    peer->facts->up = false;
    if (!peer->broken) peer->broken = "it is gone";
  }
}

std::vector<NetworkPath> LibfabricTransport::paths() const {
  const Provider::Facts& provider = provider_->facts();
  std::vector<NetworkPath> all;
  for (const Facts& facts : facts_) {
    all.push_back({.rank = facts.rank,
                   .number = 0,
                   .from = provider.interface,
                   .to = provider.name,
                   .up = facts.up,
                   .bytes_sent = facts.bytes.load(std::memory_order_relaxed),
                   .times_lost = facts.up ? 0u : 1u,
                   .bytes_per_second = 0});
  }
  return all;
}

}  // namespace tokenyard::libfabric
