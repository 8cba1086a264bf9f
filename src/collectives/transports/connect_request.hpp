/// How the two ends of a channel find each other.
///
/// Roles: the rank with the lower slot is the initiator. It makes the channel and sends a
/// ConnectRequest to the acceptor, in a mailbox message with shared memory attached, or as the
/// first bytes of a TCP connection.
///
/// Invariant: a request is sealed with the job's secret and names both processes (with their
/// incarnations) and the epoch. So a request for another process or from an epoch that is over is
/// never accepted. A repeat within the epoch is refused because its stripe is taken, or the channel
/// already has a path (WireTransport::poll_listener, poll_mailbox). The data frames that follow
/// have no seal.
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
  Member initiator, acceptor;  ///< the initiator has the lower slot
  bool operator==(const ChannelName&) const = default;
};

enum class ConnectRequestKind : uint8_t {
  shared_memory = 1,  ///< the message carries the segment
  tcp,                ///< this connection is a stripe of the channel
  refusal,            ///< to the initiator: no shared memory here, use TCP; `words` say why
};

struct ConnectRequest {
  ConnectRequestKind kind = ConnectRequestKind::tcp;
  ChannelName channel;
  uint64_t bytes = 0;  ///< of a ring, or of a stripe's turn
  uint64_t file = 0;   ///< inode of the segment
  uint32_t stripe = 0, stripes = 0;
  uint64_t nonce = 0;  ///< makes each TCP reply unique
  std::string words;
};

/// Encoded size without `words`.
inline constexpr size_t kConnectRequestBytes = 112;
inline constexpr size_t kConnectRequestWordsMax = 200;
inline constexpr uint32_t kStripesMax = 16;

/// Returns the key of a job's channels.
net::Key wire_key(const std::string& secret, const std::string& job);
std::vector<std::byte> encode(const ConnectRequest& connect_request, const net::Key& key);
/// Returns nothing if the bytes are no request, have another version, or are not sealed with this
/// key.
std::optional<ConnectRequest> decode_connect_request(std::span<const std::byte> bytes,
                                                     const net::Key& key);
/// Returns the acceptor's reply to a TCP request, which proves to the initiator that the acceptor
/// knows the secret.
net::Digest connect_reply(std::span<const std::byte> connect_request, const net::Key& key);

}  // namespace tokenyard::collectives
