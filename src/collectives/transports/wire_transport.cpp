#include "collectives/transports/wire_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "net/address.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// A look costs about a microsecond of system calls, polling a ring a hundredth of that. So polls
/// look rarely, and more often while a channel is being set up.
constexpr uint64_t kPollsALook = 1024;
constexpr uint64_t kPollsALookUnsettled = 16;

/// Longest sleep while something is due of which no descriptor tells.
constexpr int64_t kNapForeverNs = std::numeric_limits<int64_t>::max();
constexpr int64_t kNapWhileWaitingNs = 1'000'000;

}  // namespace

WireTransport::WireTransport(const WireOptions& options)
    : options_(options),
      host_(options.host.empty() ? default_host() : options.host),
      key_(wire_key(options.secret, options.job)),
      gate_(options.self),
      shared_(gate_, key_),
      listener_(gate_, key_,
                options.address.empty() ? net::own_address(std::nullopt) : options.address, poller_,
                options.socket_buffer_bytes),
      nap_max_ns_(kNapForeverNs) {
  if (options.stripes < 1 || options.stripes > kStripesMax) {
    throw InvalidArgument("stripes", fmt::format("1 to {}", kStripesMax),
                          fmt::format("{}", options.stripes));
  }
  if (options.stripe_bytes == 0) throw InvalidArgument("stripe_bytes", "more than 0", "0");
  poller_.watch_arrivals(shared_.mailbox().native());
}

WireTransport::~WireTransport() {
  for (auto& [line, pair] : pairs_) pair.channel->end();  // the engine may still hold it
}

Contact WireTransport::contact() const {
  return encode({.host = host_,
                 .mailbox = shared_.mailbox().name(),
                 .address = listener_.address(),
                 .port = listener_.port()});
}

void WireTransport::begin_epoch(const View& view, const Contacts& contacts) {
  for (auto& [line, pair] : pairs_) {
    pair.channel->end();
    bytes_of_past_epochs_ += pair.channel->bytes_sent();
  }
  pairs_.clear();
  dials_.clear();
  lingering_.clear();
  peers_.clear();
  shared_.begin_epoch();
  gate_.begin(view);
  for (const Member& member : view.members) {
    if (member == gate_.self()) continue;
    Peer peer{.member = member, .endpoint = {}, .reason = {}};
    const auto contact = contacts.find(member.slot);
    auto endpoint = contact == contacts.end() ? std::nullopt : decode_contact(contact->second);
    if (endpoint) {
      peer.endpoint = std::move(*endpoint);
    } else {
      peer.reason = "it has sent no endpoint";
    }
    peers_.emplace(member.slot, std::move(peer));
  }
  unsettled_ = true;  // messages and connections of this epoch may have come early
  poller_.wake();     // a sleeping thread has not set `asleep` in the new channels
}

std::shared_ptr<Channel> WireTransport::channel(GroupId group, Lane lane, Slot peer) {
  if (!peers_.contains(peer)) {
    throw InvalidArgument("peer", fmt::format("another member of epoch {}", gate_.epoch()),
                          fmt::format("rank {}", peer));
  }
  Pair& pair = find_or_make(group, lane, peer);
  pair.asked_for = true;
  return pair.channel;
}

void WireTransport::release(GroupId group) {
  std::erase_if(dials_,
                [&](const Dial& dial) { return dial.connect_request().channel.group == group; });
  std::erase_if(pairs_, [&](const auto& entry) {
    const bool of_it = std::get<GroupId>(entry.first) == group;
    if (of_it) let_go(entry.second);
    return of_it;
  });
}

void WireTransport::let_go(const Pair& pair) {
  TcpChannel* const tcp = pair.channel->tcp();
  std::unique_ptr<Channel> channel = pair.channel->end();
  bytes_of_past_epochs_ += pair.channel->bytes_sent();
  if (tcp == nullptr) return;
  tcp->finish_sending();
  lingering_.push_back({std::move(channel), tcp});
}

void WireTransport::let_go_of_strays() {
  const auto is_known = [&](GroupId group) {
    const auto first = pairs_.lower_bound(Line{group, Lane::collective, 0});
    return std::any_of(first, pairs_.end(), [&](const auto& entry) {
      return std::get<GroupId>(entry.first) == group && entry.second.asked_for;
    });
  };
  std::erase_if(pairs_, [&](const auto& entry) {
    const Pair& pair = entry.second;
    if (pair.asked_for || pair.name.acceptor != gate_.self()) return false;
    const PairChannel& channel = *pair.channel;
    const bool closed = (channel.shared() != nullptr && channel.shared()->is_closed_by_peer()) ||
                        (channel.tcp() != nullptr && channel.tcp()->is_closed_by_peer());
    if (!closed || is_known(std::get<GroupId>(entry.first))) return false;
    let_go(pair);
    return true;
  });
}

WireTransport::Pair& WireTransport::find_or_make(GroupId group, Lane lane, Slot peer) {
  const auto [at, is_new] = pairs_.try_emplace(Line{group, lane, peer});
  Pair& pair = at->second;
  if (!is_new) return pair;
  const Member& self = gate_.self();
  const Member& other = peers_.at(peer).member;
  pair.name = {gate_.epoch(), group, lane, std::min(self, other), std::max(self, other)};
  pair.channel = std::make_shared<PairChannel>();
  unsettled_ = true;
  if (pair.name.initiator == self) invite(pair);
  poller_.wake();  // a sleeping thread has not set `asleep` in this channel
  return pair;
}

WireTransport::Peer& WireTransport::peer_of(const Pair& pair) {
  const Member& other =
      pair.name.initiator == gate_.self() ? pair.name.acceptor : pair.name.initiator;
  return peers_.at(other.slot);
}

WireTransport::Pair& WireTransport::pair_of(const ChannelName& name) {
  const Member& other = name.initiator == gate_.self() ? name.acceptor : name.initiator;
  return find_or_make(name.group, name.lane, other.slot);
}

bool WireTransport::same_host(Slot peer) const {
  const auto at = peers_.find(peer);
  return !options_.force_tcp && at != peers_.end() && at->second.endpoint.host == host_;
}

uint64_t WireTransport::host_of(Slot slot) const {
  if (options_.force_tcp) return slot;
  const auto at = peers_.find(slot);
  return std::hash<std::string>()(at != peers_.end() ? at->second.endpoint.host : host_);
}

void WireTransport::invite(Pair& pair) {
  Peer& peer = peer_of(pair);
  if (!same_host(peer.member.slot)) return invite_by_tcp(pair, "");
  const size_t ring_bytes =
      pair.name.lane == Lane::collective ? options_.ring_bytes : options_.point_to_point_ring_bytes;
  try {
    pair.channel->use(std::make_unique<SharedChannel>(
        shared_.invite(pair.name, peer.endpoint.mailbox, ring_bytes), End::initiator,
        shared_.mailbox(), net::AbstractAddress(peer.endpoint.mailbox), offers(pair)));
  } catch (const OsError& error) {
    invite_by_tcp(pair, error.what());
  }
}

bool WireTransport::offers(const Pair& pair) const {
  return options_.offer && pair.name.lane == Lane::collective;
}

void WireTransport::invite_by_tcp(Pair& pair, const std::string& reason) {
  Peer& peer = peer_of(pair);
  if (!reason.empty()) peer.reason = "over TCP: " + reason;
  use_tcp(pair, options_.stripes, options_.stripe_bytes);
  if (peer.endpoint.port != 0) dial(pair, 0);
}

void WireTransport::use_tcp(Pair& pair, uint32_t stripes, uint64_t turn_bytes) {
  pair.channel->use(std::make_unique<TcpChannel>(stripes, turn_bytes));
}

void WireTransport::dial(Pair& pair, uint32_t stripe) {
  const TcpChannel& channel = *pair.channel->tcp();
  dials_.emplace_back(ConnectRequest{.kind = ConnectRequestKind::tcp,
                                     .channel = pair.name,
                                     .bytes = channel.turn_bytes(),
                                     .stripe = stripe,
                                     .stripes = channel.stripes(),
                                     .nonce = net::random_number(),
                                     .words = {}},
                      key_, peer_of(pair).endpoint, options_.socket_buffer_bytes);
  pair.dialled = stripe + 1;
}

void WireTransport::poll() {
  const uint64_t every = unsettled_ ? kPollsALookUnsettled : kPollsALook;  // powers of two
  if (has_slept_.load(std::memory_order_relaxed) && has_slept_.exchange(false)) {
    for (auto& [line, pair] : pairs_) {
      if (pair.channel->shared() != nullptr) pair.channel->shared()->set_asleep(false);
    }
    look();
  } else if ((++polls_ & (every - 1)) == 0) {
    look();
  }
}

void WireTransport::look() {
  const WireTime now = std::chrono::steady_clock::now();
  poll_mailbox();
  poll_listener(now);
  dial_busy_pairs();
  poll_dials(now);
  let_go_of_strays();
  std::erase_if(lingering_, [](Lingering& one) { return one.tcp->discard_to_end(); });
  unsettled_ = std::any_of(pairs_.begin(), pairs_.end(),
                           [&](const auto& entry) { return !is_settled(entry.second); });
}

bool WireTransport::is_settled(const Pair& pair) const {
  if (pair.channel->shared() != nullptr) return pair.channel->shared()->taken();
  const TcpChannel* tcp = pair.channel->tcp();
  if (tcp == nullptr) return false;
  for (uint32_t stripe = 0; stripe < std::max(pair.dialled, 1u); ++stripe) {
    if (!tcp->has(stripe)) return false;
  }
  return true;
}

void WireTransport::poll_mailbox() {
  for (SharedNews& news : shared_.poll()) {
    if (news.channel.initiator == gate_.self() &&
        !pairs_.contains({news.channel.group, news.channel.lane, news.channel.acceptor.slot})) {
      continue;  // a refusal of a channel that was released
    }
    Pair& pair = pair_of(news.channel);
    Peer& peer = peer_of(pair);
    if (news.channel.initiator == gate_.self()) {
      // A refusal of a segment that is in use would be invalid: an acceptor does not change its
      // mind.
      const bool open = pair.channel->shared() != nullptr && !pair.channel->shared()->taken();
      if (open) invite_by_tcp(pair, news.refusal);
    } else if (pair.channel->shared() != nullptr || pair.channel->tcp() != nullptr) {
      // A repeated request; the first one counts.
    } else if (news.segment && same_host(peer.member.slot)) {
      pair.channel->use(std::make_unique<SharedChannel>(
          std::move(*news.segment), End::acceptor, shared_.mailbox(),
          net::AbstractAddress(peer.endpoint.mailbox), offers(pair)));
    } else {
      peer.reason = "over TCP: " + news.refusal;
      shared_.refuse(news.channel, peer.endpoint.mailbox, news.refusal);
    }
  }
}

void WireTransport::poll_listener(WireTime now) {
  for (AuthenticatedConnection& connection : listener_.poll(now)) {
    const ConnectRequest& connect_request = connection.connect_request;
    Pair& pair = pair_of(connect_request.channel);
    if (pair.channel->shared() == nullptr && pair.channel->tcp() == nullptr) {
      use_tcp(pair, connect_request.stripes, connect_request.bytes);
    }
    TcpChannel* const tcp = pair.channel->tcp();
    const bool fits = tcp != nullptr && tcp->stripes() == connect_request.stripes &&
                      tcp->turn_bytes() == connect_request.bytes &&
                      !tcp->has(connect_request.stripe);
    if (fits && net::send_now(connection.socket, connection.connect_reply).bytes ==
                    connection.connect_reply.size()) {
      tcp->add(connect_request.stripe, std::move(connection.socket));
    } else {
      listener_.count_refused();
    }
  }
}

void WireTransport::poll_dials(WireTime now) {
  std::erase_if(dials_, [&](Dial& dial) {
    auto socket = dial.poll(now, poller_);
    if (!socket) return false;
    pair_of(dial.connect_request().channel)
        .channel->tcp()
        ->add(dial.connect_request().stripe, std::move(*socket));
    return true;
  });
}

void WireTransport::dial_busy_pairs() {
  for (auto& [line, pair] : pairs_) {
    if (pair.dialled != 1 || !pair.channel->tcp()->is_busy()) continue;
    for (uint32_t stripe = 1; stripe < pair.channel->tcp()->stripes(); ++stripe) {
      dial(pair, stripe);
    }
  }
}

void WireTransport::prepare_to_sleep() {
  // First drains the mailbox: a doorbell that answers the announcement must stay in the mailbox, to
  // end the sleep.
  look();
  for (auto& [line, pair] : pairs_) {
    if (pair.channel->shared() != nullptr) pair.channel->shared()->set_asleep(true);
  }
  const bool waiting =
      shared_.is_waiting() || listener_.is_short() || !lingering_.empty() ||
      std::any_of(dials_.begin(), dials_.end(), [](const Dial& dial) { return dial.is_pausing(); });
  nap_max_ns_ = waiting ? kNapWhileWaitingNs : kNapForeverNs;
}

void WireTransport::sleep(std::chrono::nanoseconds at_most) {
  poller_.sleep(std::min(at_most, std::chrono::nanoseconds(nap_max_ns_.load())));
  has_slept_ = true;
}

std::string WireTransport::reason(Slot peer) const {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return "it is no member";
  for (const Dial& dial : dials_) {
    if (dial.connect_request().channel.acceptor.slot == peer && !dial.trouble().empty()) {
      return dial.trouble();
    }
  }
  return at->second.reason;
}

uint64_t WireTransport::bytes_sent() const {
  uint64_t bytes = bytes_of_past_epochs_;
  for (const auto& [line, pair] : pairs_) bytes += pair.channel->bytes_sent();
  return bytes;
}

}  // namespace tokenyard::collectives
