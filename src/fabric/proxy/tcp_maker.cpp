#include "fabric/proxy/tcp_maker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <utility>

#include "base/os_failure.hpp"
#include "fabric/proxy/tcp_card.hpp"
#include "fabric/proxy/tcp_transport.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr uint32_t kPathsByDefault = 2;
/// Descriptors of a network but for its connections, and of dials that it has not accepted yet.
constexpr uint64_t kOwnDescriptors = 8;

}  // namespace

TcpMaker::TcpMaker(TcpOptions options, const TransportPlace& place)
    : place_(place), asked_paths_(options.paths) {
  if (options.address.empty()) options.address = place.address;
  connector_ = std::make_unique<TcpConnector>(
      options,
      TcpConnector::Self{.rank = place.rank, .epoch = place.epoch, .secret = place.secret});
}

std::vector<std::byte> TcpMaker::card() const {
  return to_bytes(TcpCard{.endpoint = connector_->endpoint(), .paths = asked_paths_});
}

void TcpMaker::begin(const TransportCards& cards, const std::vector<bool>& reached) {
  std::map<uint32_t, TcpEndpoint> peers;
  std::optional<uint32_t> asked;
  uint32_t places = kPathsByDefault;
  acknowledged_.assign(cards.size(), false);
  for (uint32_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].empty()) continue;
    const auto card = from_bytes<TcpCard>(cards[rank]);
    if (!card) throw InvalidArgument("network", "an endpoint", "other bytes", rank);
    const auto& [endpoint, paths] = *card;
    // Every rank compares with the first, so all find the same one.
    if (asked.value_or(paths) != paths) {
      throw InvalidArgument("connections", fmt::format("{}, as on the ranks before", *asked),
                            fmt::format("{}", paths), rank);
    }
    asked = paths;
    places = std::max(places, static_cast<uint32_t>(endpoint.places.size()));
    if (!reached[rank]) continue;
    acknowledged_[rank] =
        std::max(connector_->endpoint().places.size(), endpoint.places.size()) > 1;
    peers[rank] = endpoint;
  }
  paths_ = asked.value_or(0) != 0 ? *asked : places;
  connector_->begin(peers, paths_);
  ways_.resize(cards.size());
  for (const auto& [rank, endpoint] : peers) {
    std::vector<std::string> ways;
    for (uint32_t path = 0; path < paths_; ++path) {
      const auto [here, there] = connector_->ends_of(rank, path);
      std::string way = fmt::format("{} to {}", here, there);
      if (std::ranges::find(ways, way) == ways.end()) ways.push_back(std::move(way));
    }
    ways_[rank] = fmt::format("proxy/tcp, {} connections, {}", paths_, fmt::join(ways, " and "));
  }
}

void TcpMaker::check_limits() const {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) os_failed("getrlimit");
  const std::filesystem::directory_iterator all("/proc/self/fd");
  const auto open = static_cast<uint64_t>(std::distance(all, {}));
  const auto peers = static_cast<uint64_t>(
      std::ranges::count_if(ways_, [](const std::string& way) { return !way.empty(); }));
  const uint64_t needed = peers * paths_ + kOwnDescriptors;
  if (open + needed > limit.rlim_cur)
    throw InvalidArgument(
        "ulimit -n",
        fmt::format("at least {}: {} descriptors are open, and connections with {} ranks of other "
                    "hosts take up to {} more",
                    open + needed, open, peers, needed),
        fmt::format("{}", limit.rlim_cur));
}

std::optional<std::string> TcpMaker::missing() const {
  const auto missing = connector_->missing();
  if (!missing) return std::nullopt;
  const auto& [rank, why] = *missing;
  return fmt::format("has {} of {} connections to rank {}: {}; is a port closed?",
                     connector_->connected(rank), paths_, rank, why);
}

std::string TcpMaker::way(uint32_t rank) const {
  return ways_[rank];
}

std::unique_ptr<Transport> TcpMaker::make() {
  std::vector<std::vector<FileDescriptor>> connections(ways_.size());
  for (TcpConnector::Made& made : connector_->take_made())
    connections[made.rank].push_back(std::move(made.socket));
  return std::make_unique<TcpTransport>(
      TcpTransport::Options{.rank = place_.rank,
                            .epoch = place_.epoch,
                            .queues = place_.queues,
                            .connections = std::move(connections),
                            .acknowledged = std::move(acknowledged_),
                            .connector = std::move(connector_),
                            .stall = place_.stall});
}

}  // namespace tokenyard
