#include "collectives/control/address.hpp"

#include <asio.hpp>

#include "collectives/control/store.hpp"

namespace tokenyard::collectives {

namespace {

/// Of a network that is for documentation only, so that no route but the default one leads there.
constexpr const char* kElsewhere = "192.0.2.1";

}  // namespace

std::string own_address(const std::string& store) {
  const auto place = tcp_address(store);
  asio::io_context io;
  asio::error_code error;
  asio::ip::udp::resolver resolver(io);
  const auto targets = resolver.resolve(place ? place->host : kElsewhere,
                                        place ? std::to_string(place->port) : "9", error);
  for (const auto& target : targets) {
    // To connect a UDP socket sends nothing; it only chooses the way.
    asio::ip::udp::socket probe(io);
    probe.open(target.endpoint().protocol(), error);
    if (!error) probe.connect(target.endpoint(), error);
    if (error) continue;
    const auto local = probe.local_endpoint(error);
    if (!error) return local.address().to_string();
  }
  return "127.0.0.1";
}

}  // namespace tokenyard::collectives
