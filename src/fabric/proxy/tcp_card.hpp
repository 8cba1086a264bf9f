/// A rank's card for its peers over TCP.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/byte_stream.hpp"
#include "fabric/proxy/put_frame.hpp"
#include "fabric/proxy/tcp_connector.hpp"

namespace tokenyard {

struct TcpCard {
  TcpEndpoint endpoint;
  uint32_t paths = 0;  ///< as this rank's options say

  friend void visit(auto& stream, MaybeConst<TcpCard> auto& card) {
    constexpr size_t kPlaceBytes = 8 + 2;  // minimum, without a name
    const auto place = [](auto& list, auto& each) {
      list.text(each.host);
      list(each.port);
    };
    stream.list(card.endpoint.places, kPlaceBytes, place);
    stream.require(!card.endpoint.places.empty() && card.endpoint.places.size() <= kPathsMax);
    stream(card.endpoint.incarnation, card.paths);
    stream.require(card.paths <= kPathsMax);
  }
};

}  // namespace tokenyard
