/// Makes transports over TCP.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/proxy/tcp_connector.hpp"
#include "fabric/proxy/transport_maker.hpp"

namespace tokenyard {

class TcpMaker final : public TransportMaker {
 public:
  /// Listens. Throws InvalidArgument for a wrong option, OsError.
  TcpMaker(TcpOptions options, const TransportPlace& place);

  std::string name() const override { return "tcp"; }
  std::vector<std::byte> card() const override;
  void begin(const TransportCards& cards, const std::vector<bool>& reached) override;
  void check_limits() const override;
  bool step(TimePoint now) override { return connector_->step(now); }
  std::optional<std::string> missing() const override;
  std::string way(uint32_t rank) const override;
  std::unique_ptr<Transport> make() override;

 private:
  const TransportPlace place_;
  const uint32_t asked_paths_;
  uint32_t paths_ = 0;  ///< per peer
  std::unique_ptr<TcpConnector> connector_;
  std::vector<std::string> ways_;   ///< [ranks]
  std::vector<bool> acknowledged_;  ///< [ranks] whether paths may be lost and made anew
};

}  // namespace tokenyard
