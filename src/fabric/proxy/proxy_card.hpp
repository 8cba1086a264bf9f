/// A rank's part of the exchange before proxies connect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_stream.hpp"
#include "device/network_request.hpp"

namespace tokenyard {

struct ProxyCard {
  std::string transport;            ///< its name, alike on all ranks
  std::vector<std::byte> endpoint;  ///< the transport's own card
  MemoryKey arena_key = 0;
  uint32_t queues = 0;  ///< as this rank's options say

  friend void visit(auto& stream, MaybeConst<ProxyCard> auto& card) {
    stream.text(card.transport);
    stream.text(card.endpoint);
    stream.require(!card.endpoint.empty());
    stream(card.arena_key, card.queues);
  }
};

}  // namespace tokenyard
