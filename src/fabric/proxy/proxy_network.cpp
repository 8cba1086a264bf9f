#include "fabric/proxy/proxy_network.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "base/byte_stream.hpp"
#include "device/owned_event.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/gather.hpp"
#include "fabric/network_fault.hpp"
#include "fabric/proxy/tcp_transport.hpp"
#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr uint32_t kPathsByDefault = 2;
/// With several interfaces: how long a path may move nothing before the others take over.
constexpr std::chrono::seconds kStall{1};

}  // namespace

struct ProxyNetwork::Card {
  TcpEndpoint endpoint;
  MemoryKey arena_key = 0;
  uint32_t paths = 0, queues = 0;  ///< as this rank's options say

  friend void visit(auto& stream, MaybeConst<Card> auto& card) {
    constexpr size_t kPlaceBytes = 8 + 2;  // minimum, without a name
    const auto place = [](auto& list, auto& each) {
      list.text(each.host);
      list(each.port);
    };
    stream.list(card.endpoint.places, kPlaceBytes, place);
    stream.require(!card.endpoint.places.empty() && card.endpoint.places.size() <= kPathsMax);
    stream(card.endpoint.incarnation, card.arena_key, card.paths, card.queues);
  }
};

template <class T>
T* ProxyNetwork::array(size_t count) {
  Accelerator& owner = accelerator_;
  auto* const memory =
      static_cast<T*>(owner.allocate_shared(std::max<size_t>(count, 1) * sizeof(T)));
  kept_.emplace_back(memory, [&owner](void* gone) { owner.free_shared(gone); });
  return memory;
}

template <class T>
T* ProxyNetwork::device_array(const std::vector<T>& values) {
  Accelerator& owner = accelerator_;
  const size_t bytes = std::max<size_t>(values.size(), 1) * sizeof(T);
  auto* const memory = static_cast<T*>(owner.allocate(bytes));
  kept_.emplace_back(memory, [&owner](void* gone) { owner.free(gone); });
  if (!values.empty()) owner.copy(memory, values.data(), values.size() * sizeof(T), stream_);
  finish_stream();
  return memory;
}

ProxyNetwork::ProxyNetwork(const NetworkPlace& place, const ProxyNetworkOptions& options,
                           TimePoint until)
    : place_(place),
      options_(options),
      accelerator_(place.bootstrap.accelerator()),
      stream_(accelerator_.make_stream()) {
  Bootstrap& bootstrap = place_.bootstrap;
  const uint32_t ranks = bootstrap.size();
  std::string secret = place_.secret;
  if (secret.empty()) {
    // Their messages have not left this process.
    for (const uint64_t number : gather(bootstrap, net::random_number(), "network: secret", until))
      secret += fmt::format("{:016x}", number);
  }
  std::unique_ptr<TcpConnector> connector;
  collective_step(bootstrap, "network", until, [&] {
    if (options_.queues_per_peer == 0 || options_.queues_per_peer > kQueuesPerPeerMax) {
      throw InvalidArgument("queues", fmt::format("1 to {}", kQueuesPerPeerMax),
                            fmt::format("{}", options_.queues_per_peer));
    }
    TcpOptions tcp = options_.tcp;
    if (tcp.address.empty()) tcp.address = place_.address;
    connector = std::make_unique<TcpConnector>(
        tcp, TcpConnector::Self{
                 .rank = bootstrap.rank(), .epoch = bootstrap.generation(), .secret = secret});
    gone_ = array<AbortWord>(ranks);
    keys_[0] = draw_key(0);
  });
  const std::vector<Card> cards = exchange({.endpoint = connector->endpoint(),
                                            .arena_key = keys_[0],
                                            .paths = options_.tcp.paths,
                                            .queues = options_.queues_per_peer},
                                           until);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const bool known = reaches(rank) || rank == bootstrap.rank();
    arena_keys_.push_back(known ? cards[rank].arena_key : 0);
  }
  place_.abort_flag.watch({gone_, ranks});
  place_.abort_flag.on_refusal([this](const std::string& phase) { check(phase); });
  try {
    connect(*connector, cards, until);
    start(std::move(connector), cards);
  } catch (...) {
    place_.abort_flag.on_refusal({});
    place_.abort_flag.unwatch({gone_, ranks});
    throw;
  }
}

std::vector<ProxyNetwork::Card> ProxyNetwork::exchange(const Card& mine, TimePoint until) {
  Bootstrap& bootstrap = place_.bootstrap;
  const auto everybodys = bootstrap.all_gather(to_bytes(mine), "network: endpoints", until);
  std::vector<Card> cards(everybodys.size());
  for (uint32_t rank = 0; rank < cards.size(); ++rank) {
    if (!bootstrap.present(rank)) continue;
    const auto card = from_bytes<Card>(everybodys[rank]);
    if (!card) throw InvalidArgument("network", "an endpoint", "other bytes", rank);
    cards[rank] = *card;
  }
  // Every rank compares with the first, so all find the same one.
  const auto first = std::ranges::find_if(cards, [](const Card& card) { return card.queues != 0; });
  const auto require_alike = [&](const char* name, auto Card::*field) {
    for (uint32_t rank = 0; rank < cards.size(); ++rank) {
      if (!bootstrap.present(rank) || cards[rank].*field == (*first).*field) continue;
      throw InvalidArgument(name, fmt::format("{}, as on the ranks before", (*first).*field),
                            fmt::format("{}", cards[rank].*field), rank);
    }
  };
  require_alike("connections", &Card::paths);
  require_alike("queues", &Card::queues);
  paths_ = first->paths;
  if (paths_ == 0) {
    paths_ = kPathsByDefault;
    for (const Card& card : cards)
      paths_ = std::max(paths_, static_cast<uint32_t>(card.endpoint.places.size()));
  }
  return cards;
}

void ProxyNetwork::connect(TcpConnector& connector, const std::vector<Card>& cards,
                           TimePoint until) {
  Bootstrap& bootstrap = place_.bootstrap;
  // All ranks wait for equally long, and have time left to tell one another of a failure.
  const TimePoint now = accelerator_.now();
  const TimePoint connected_until = now + (until - now) / 4 * 3;
  collective_step(bootstrap, "network: connections", until, [&] {
    std::map<uint32_t, TcpEndpoint> peers;
    for (uint32_t rank = 0; rank < bootstrap.size(); ++rank)
      if (reaches(rank)) peers[rank] = cards[rank].endpoint;
    connector.begin(peers, paths_);
    const bool all = accelerator_.wait_until(connected_until, [&] {
      place_.abort_flag.check("network: connect");
      return connector.step(accelerator_.now());
    });
    if (!all) {
      const auto [rank, why] = *connector.missing();
      throw Unsupported(
          "network",
          fmt::format("rank {} has {} of {} connections to rank {}: {}; is a port closed?",
                      bootstrap.rank(), connector.connected(rank), paths_, rank, why));
    }
  });
}

void ProxyNetwork::start(std::unique_ptr<TcpConnector> connector, const std::vector<Card>& cards) {
  const uint32_t rank = place_.bootstrap.rank();
  ways_.resize(cards.size());
  for (uint32_t peer = 0; peer < cards.size(); ++peer)
    if (reaches(peer)) ways_[peer] = way_to(*connector, peer);
  std::vector<std::vector<FileDescriptor>> connections(cards.size());
  std::vector<bool> acknowledged(cards.size());
  const size_t interfaces = connector->endpoint().places.size();
  for (uint32_t peer = 0; peer < cards.size(); ++peer)
    acknowledged[peer] =
        reaches(peer) && std::max(interfaces, cards[peer].endpoint.places.size()) > 1;
  for (TcpConnector::Made& made : connector->take_made())
    connections[made.rank].push_back(std::move(made.socket));
  auto transport = std::make_unique<TcpTransport>(
      TcpTransport::Options{.rank = rank,
                            .epoch = place_.bootstrap.generation(),
                            .queues = options_.queues_per_peer,
                            .connections = std::move(connections),
                            .acknowledged = std::move(acknowledged),
                            .connector = std::move(connector),
                            .stall = std::min<std::chrono::nanoseconds>(kStall, grace() / 4)});
  for (uint32_t peer = 0; peer < place_.bootstrap.size(); ++peer) {
    for (uint32_t number = 0; number < options_.queues_per_peer; ++number) {
      pairs_.push_back(nullptr);
      if (!reaches(peer)) continue;
      pairs_.back() = array<QueuePair>(1);
      pairs_.back()->rank = rank;
      pairs_.back()->peer = peer;
      pairs_.back()->number = number;
    }
  }
  ProxyOptions options = options_.proxy;
  options.kernels_ring = accelerator_.kind() == AcceleratorKind::host;
  options.grace = grace();
  proxy_ = std::make_unique<Proxy>(std::move(transport),
                                   Proxy::Queues{.per_peer = options_.queues_per_peer,
                                                 .pairs = pairs_,
                                                 .gone = gone_,
                                                 .refused = place_.abort_flag.word_to_refuse()},
                                   options);
  std::vector<QueueEnd> ends(pairs_.size());
  for (size_t index = 0; index < pairs_.size(); ++index) {
    if (pairs_[index] == nullptr) continue;
    ends[index] = {.pair = pairs_[index],
                   .mlx5 = nullptr,
                   .doorbell = options.kernels_ring ? proxy_->doorbell() : nullptr,
                   .rank = rank,
                   .peer = pairs_[index]->peer,
                   .number = pairs_[index]->number,
                   .posted = 0,
                   .completed = 0};
  }
  ends_ = device_array(ends);
  key_table_ = device_array(arena_keys_);
  proxy_->register_memory(keys_[0], {place_.arena.base(), place_.arena.capacity()}, wait());
}

ProxyNetwork::~ProxyNetwork() {
  // A rank's requests count after it has left.
  try {
    accelerator_.drain();
    (void)drain(accelerator_.now() + place_.timeout);
  } catch (const std::exception&) {
    // An interrupt ends the wait.
  }
  place_.abort_flag.on_refusal({});
  proxy_.reset();
  place_.abort_flag.unwatch({gone_, place_.bootstrap.size()});
  accelerator_.free_stream(stream_);
}

std::string ProxyNetwork::way_to(const TcpConnector& connector, uint32_t rank) const {
  std::vector<std::string> ways;
  for (uint32_t path = 0; path < paths_; ++path) {
    const auto [here, there] = connector.ends_of(rank, path);
    std::string way = fmt::format("{} to {}", here, there);
    if (std::ranges::find(ways, way) == ways.end()) ways.push_back(std::move(way));
  }
  return fmt::format("proxy/tcp, {} connections, {}", paths_, fmt::join(ways, " and "));
}

std::string ProxyNetwork::way(uint32_t rank) const {
  return ways_[rank];
}

std::vector<NetworkPath> ProxyNetwork::paths() const {
  return proxy_->transport().paths();
}

std::chrono::nanoseconds ProxyNetwork::grace() const {
  return std::min(options_.proxy.grace, place_.timeout / 2);
}

NetworkQueues ProxyNetwork::queues() const {
  return {.ends = ends_, .arena_keys = key_table_, .per_peer = options_.queues_per_peer};
}

MemoryKey ProxyNetwork::draw_key(uint32_t region) const {
  const auto tag = 1 + static_cast<uint32_t>(net::random_number() % 0xfffffe);
  return tag << 8 | region;
}

Proxy::Wait ProxyNetwork::wait() const {
  return [this](const std::function<bool()>& condition) {
    return accelerator_.wait_until(accelerator_.now() + place_.timeout, condition);
  };
}

MemoryKey ProxyNetwork::register_memory(std::byte* base, size_t bytes) {
  if (base == nullptr || bytes == 0)
    throw InvalidArgument("bytes", "memory of at least 1 byte", fmt::format("{}", bytes));
  const auto* const free = std::ranges::find(keys_, MemoryKey{0});
  if (free == keys_.end())
    throw InvalidArgument("register_memory",
                          fmt::format("at most {} regions; deregister one", kNetworkRegions),
                          fmt::format("{}", kNetworkRegions + 1));
  const auto region = static_cast<uint32_t>(free - keys_.begin());
  const MemoryKey key = draw_key(region);
  proxy_->register_memory(key, {base, bytes}, wait());
  return keys_[region] = key;
}

void ProxyNetwork::deregister(MemoryKey key) {
  const uint32_t region = region_of_key(key);
  if (key == 0 || region == 0 || region >= keys_.size() || keys_[region] != key)
    throw InvalidArgument("key", "one that register_memory returned", fmt::format("{:#x}", key));
  const TimePoint begin = accelerator_.now();
  const auto user = proxy_->deregister(key, wait());
  keys_[region] = 0;
  if (!user) return;
  const std::chrono::duration<double> waited = accelerator_.now() - begin;
  throw PeerTimeout({.rank = *user,
                     .phase = "network: deregister",
                     .expected = 0,
                     .seen = 1,
                     .waited_s = waited.count()});
}

void ProxyNetwork::finish_stream() const {
  const OwnedEvent end(accelerator_, accelerator_.record(stream_));
  const auto until = accelerator_.now() + place_.timeout + std::chrono::seconds(30);
  if (!accelerator_.wait_until(until, [&] { return accelerator_.done(end.get()); }))
    throw InternalError("network: a copy on its stream did not end");
}

void ProxyNetwork::check(const std::string& phase) {
  if (proxy_ != nullptr) check_refusals(accelerator_, pairs_, phase);
}

bool ProxyNetwork::drain(TimePoint until) {
  const auto settling = proxy_->settle();
  return accelerator_.wait_until(until, [&] { return proxy_->is_settled(); });
}

MakeNetwork proxy_networks(const ProxyNetworkOptions& options) {
  return [options](const NetworkPlace& place, TimePoint until) {
    return std::make_shared<ProxyNetwork>(place, options, until);
  };
}

}  // namespace tokenyard
