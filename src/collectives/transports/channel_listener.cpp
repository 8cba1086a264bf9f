#include "collectives/transports/channel_listener.hpp"

#include <utility>

namespace tokenyard::collectives {

namespace {

constexpr size_t kEarlyVisitorsMax = 4096;  ///< only members can be early

}  // namespace

ChannelListener::ChannelListener(const EpochGate& gate, const net::Key& key,
                                 const std::string& address, net::Poller& poller, int buffer_bytes)
    : gate_(gate),
      key_(key),
      listener_({.address = address,
                 .first_bytes = kConnectRequestBytes,
                 .socket_buffer_bytes = buffer_bytes},
                poller) {}

std::vector<AuthenticatedConnection> ChannelListener::poll(WireTime now) {
  std::vector<AuthenticatedConnection> connections;
  for (AuthenticatedConnection& connection : std::exchange(early_, {})) {
    switch (gate_.judge(connection.connect_request)) {
      case Timing::now:
        connections.push_back(std::move(connection));
        break;
      case Timing::early:
        early_.push_back(std::move(connection));
        break;
      case Timing::never:
        ++refused_;
        break;
    }
  }
  for (auto& arrival : listener_.poll(now)) judge(std::move(arrival), connections);
  return connections;
}

void ChannelListener::judge(net::PolledListener::Arrival arrival,
                            std::vector<AuthenticatedConnection>& connections) {
  const auto connect_request = decode_connect_request(arrival.first, key_);
  const bool valid = connect_request && connect_request->kind == ConnectRequestKind::tcp &&
                     connect_request->stripes >= 1 && connect_request->stripes <= kStripesMax &&
                     connect_request->stripe < connect_request->stripes &&
                     connect_request->bytes > 0;
  const Timing timing = valid ? gate_.judge(*connect_request) : Timing::never;
  if (timing == Timing::never || early_.size() == kEarlyVisitorsMax) {
    ++refused_;
    return;
  }
  AuthenticatedConnection connection{*connect_request, connect_reply(arrival.first, key_),
                                     std::move(arrival.socket)};
  (timing == Timing::now ? connections : early_).push_back(std::move(connection));
}

}  // namespace tokenyard::collectives
