/// A rank's part of the exchange of addresses: its card's, and its queue pairs' numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_stream.hpp"
#include "device/network_request.hpp"
#include "ibgda/commands.hpp"
#include "ibgda/rdma_driver.hpp"

namespace tokenyard::ibgda {

struct Endpoint {
  static constexpr size_t kPairsMax = size_t{1} << 20;
  std::string link;  ///< see link_text; alike on all ranks
  uint32_t queues = 0;
  MemoryKey arena_key = 0;
  uint16_t lid = 0;
  uint8_t mtu = 0;                                    ///< as in PortFacts
  uint8_t log_reads_asked = 0, log_reads_served = 0;  ///< see CardLimits
  uint64_t gid_high = 0, gid_low = 0;
  std::vector<uint32_t> pairs = {};  ///< [ranks][queues] numbers

  void set_gid(const Gid& gid) {
    gid_high = gid_low = 0;
    for (size_t byte = 0; byte < 8; ++byte) {
      gid_high = gid_high << 8 | gid[byte];
      gid_low = gid_low << 8 | gid[byte + 8];
    }
  }
  Gid gid() const {
    Gid gid{};
    for (size_t byte = 0; byte < 8; ++byte) {
      gid[byte] = static_cast<uint8_t>(gid_high >> 8 * (7 - byte));
      gid[byte + 8] = static_cast<uint8_t>(gid_low >> 8 * (7 - byte));
    }
    return gid;
  }

  friend void visit(auto& stream, MaybeConst<Endpoint> auto& end) {
    stream.text(end.link, 64);
    stream(end.queues, end.arena_key, end.lid, end.mtu, end.log_reads_asked, end.log_reads_served,
           end.gid_high, end.gid_low);
    stream.require(end.log_reads_asked <= kLogReadsMax && end.log_reads_served <= kLogReadsMax);
    stream.require(end.mtu >= 1 && end.mtu <= 5);
    stream.list(end.pairs, sizeof(uint32_t), [](auto& each, auto& pair) {
      each(pair);
      each.require(pair < 1u << 24);
    });
    stream.require(end.pairs.size() <= kPairsMax);
  }
};

}  // namespace tokenyard::ibgda
