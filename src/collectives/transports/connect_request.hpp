/// How the two ends of a channel find one another. The rank with the lower slot makes a channel and
/// invites the other one: by a letter with shared memory in it, or as the first bytes of a TCP
/// connection. An invitation is sealed with the job's secret, and names both processes and the
/// epoch; whoever gets one that is not for it, or of an epoch that is over, does not take it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/interfaces/channel.hpp"
#include "collectives/interfaces/words.hpp"
#include "net/key.hpp"

namespace tokenyard::collectives {

struct ChannelName {
  Epoch epoch = 0;
  GroupId group = 0;
  Lane lane = Lane::collective;
  Member initiator, acceptor;  ///< the maker has the lower slot
  bool operator==(const ChannelName&) const = default;
};

enum class ConnectRequestKind : uint8_t {
  shared_memory = 1,  ///< beside it comes the segment
  tcp,                ///< this connection is a stripe of the channel
  refusal,            ///< back to the maker: no shared memory here, use TCP; `words` say why
};

struct ConnectRequest {
  ConnectRequestKind kind = ConnectRequestKind::tcp;
  ChannelName channel;
  uint64_t bytes = 0;  ///< of a ring, or of a stripe's turn
  uint64_t file = 0;   ///< inode of the segment
  uint32_t stripe = 0, stripes = 0;
  uint64_t nonce = 0;  ///< makes each TCP welcome another
  std::string words;
};

/// Of one without words.
inline constexpr size_t kConnectRequestBytes = 112;
inline constexpr size_t kConnectRequestWordsMax = 200;
inline constexpr uint32_t kStripesMax = 16;

/// The key of a job's wire.
net::Key wire_key(const std::string& secret, const std::string& job);
std::vector<std::byte> encode(const ConnectRequest& connect_request, const net::Key& key);
/// Nothing if it is none, of another version, or was not sealed with this key.
std::optional<ConnectRequest> decode_connect_request(std::span<const std::byte> bytes,
                                                     const net::Key& key);
/// What the taker of a TCP stripe answers: the maker, too, must know with whom it speaks.
net::Digest connect_reply(std::span<const std::byte> connect_request, const net::Key& key);

}  // namespace tokenyard::collectives
