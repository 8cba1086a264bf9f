#include "fabric/proxy/tcp_maker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "fabric/proxy/tcp_transport.hpp"
#include "net/payload.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr uint32_t kPathsByDefault = 2;

/// A rank's endpoint, and the number of paths that its options ask for.
std::pair<TcpEndpoint, uint32_t> read_tcp_card(std::span<const std::byte> bytes, uint32_t rank) {
  net::PayloadReader reader(bytes);
  TcpEndpoint endpoint;
  endpoint.places.resize(reader.up_to<uint32_t>(kPathsMax));
  for (net::Address& place : endpoint.places) {
    place.host = reader.text();
    place.port = reader.up_to<uint16_t>(0xffff);
  }
  endpoint.incarnation = reader.number();
  const auto paths = reader.up_to<uint32_t>(0xffffffff);
  if (!reader.ok() || !reader.at_end() || endpoint.places.empty())
    throw InvalidArgument("network", "an endpoint", "other bytes", rank);
  return {endpoint, paths};
}

}  // namespace

TcpMaker::TcpMaker(TcpOptions options, const TransportPlace& place)
    : place_(place), asked_paths_(options.paths) {
  if (options.address.empty()) options.address = place.address;
  connector_ = std::make_unique<TcpConnector>(
      options,
      TcpConnector::Self{.rank = place.rank, .epoch = place.epoch, .secret = place.secret});
}

std::vector<std::byte> TcpMaker::card() const {
  const TcpEndpoint& endpoint = connector_->endpoint();
  net::PayloadWriter writer;
  writer.number(endpoint.places.size());
  for (const net::Address& place : endpoint.places) {
    writer.text(place.host);
    writer.number(place.port);
  }
  writer.number(endpoint.incarnation);
  writer.number(asked_paths_);
  return writer.take();
}

void TcpMaker::begin(const TransportCards& cards, const std::vector<bool>& reached) {
  std::map<uint32_t, TcpEndpoint> peers;
  std::optional<uint32_t> asked;
  uint32_t places = kPathsByDefault;
  acknowledged_.assign(cards.size(), false);
  for (uint32_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].empty()) continue;
    const auto [endpoint, paths] = read_tcp_card(cards[rank], rank);
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
