/// Messages between the endpoints of two ranks, over libfabric. 80 bytes, little-endian:
///
///     0 token 8                                   of the rank that it is for
///     8 kind 1 | inline bytes 1 | queue 2 | rank 4
///    16 sequence 4 | credits 2 | credits for credits 2
///    24 key 4 | turn 4
///    32 offset 8
///    40 puts 4 | group 4
///    48 put_inline:      bytes 32, zero behind those that count
///       signal:          addend 8, zero 24
///       region:          base 8, bytes 8 (0: the key opens none), the provider's key 8, zero 8
///       refusal:         check 4, region 4, expected 8, seen 8, zero 8
///       others:          zero 32
///
/// Long puts are no messages: the sender writes them to the peer's memory itself. It asks for the
/// region of a key once:
///
///     sender    ask(key)                                          ---->
///               <----  region(key, base, bytes, the provider's key)      peer
///               writes
///
/// A region is closed once no peer writes to it any more:
///
///     peer      withdrawn(key)                                    ---->
///               <----  fence(queue) of each queue, released(key)   once its writes are done
///               closes it once the fences' groups have landed
///
/// `sequence` numbers a rank's messages to another, which apply in that order, however they arrive.
/// A signal ends a group of its queue's long puts, and so do the question whether a queue has
/// settled, and a fence. It carries the group's number, modulo 256, and how many puts the group
/// has, as far as the network's own order does not cover them. It takes effect once that many of
/// the group have landed, and after the queue's signals before it: a later put that lands early
/// counts for no earlier signal. The credit of a message that waits is returned when it takes
/// effect, so fewer groups than 256 are open.
///
/// A receiver grants a sender so many messages (credits), and returns them as it takes messages.
/// Two more are for messages that do nothing but return credits: a rank sends one only after it has
/// taken half of the credits, so the other has sent messages since, and each of those returns all.
///
/// Pure: bytes in, bytes out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/network_request.hpp"

namespace tokenyard::libfabric {

inline constexpr size_t kMessageBytes = 80;
inline constexpr uint32_t kGroups = 256;

enum class MessageKind : uint8_t {
  hello = 1,  ///< the first one
  credit,     ///< returns credits, and nothing else
  put_inline,
  signal,
  settle,     ///< asks for `settled`
  settled,    ///< all of the queue's requests before `turn` have taken effect
  refusal,    ///< a request of the queue was refused
  ask,        ///< asks for `region`
  region,     ///< where the key's memory is
  withdrawn,  ///< asks for `released`
  released,   ///< nothing is written to the key's memory any more but by the groups before
  fence,      ///< ends a group
  skipped,    ///< so many puts (`turn`) of a group will not come
  probe,      ///< asks for `echo`
  echo,
  given_up,  ///< nothing more is taken of the peer
};

struct Message {
  MessageKind kind = MessageKind::hello;
  uint8_t inline_bytes = 0;
  uint16_t queue = 0;  ///< number among the queues between the two ranks
  uint32_t rank = 0;   ///< of the sender
  uint64_t token = 0;
  uint32_t sequence = 0;
  uint16_t credits = 0, credits_for_credits = 0;
  MemoryKey key = 0;
  uint32_t turn = 0;
  uint64_t offset = 0;
  uint32_t puts = 0, group = 0;
  // The kind says which of these are used.
  std::array<std::byte, kNetworkInlineMax> inlined{};
  uint64_t addend = 0;
  uint64_t base = 0, bytes = 0, provider_key = 0;
  NetworkCheck check = NetworkCheck::none;
  NetworkRefusal refusal{};
};

std::array<std::byte, kMessageBytes> encode(const Message& message);
/// Accepts exactly what `encode` returns. Throws net::ProtocolError.
Message decode_message(std::span<const std::byte, kMessageBytes> bytes);

}  // namespace tokenyard::libfabric
