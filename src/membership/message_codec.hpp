/// Encodes and decodes membership messages. Input is untrusted: bytes that no encoder writes decode
/// to nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "membership/message.hpp"
#include "membership/witness.hpp"

namespace tokenyard::membership {

/// Enough for any message of kSlotsMax members with 80 groups of all members, even the promise of a
/// member that has accepted a verdict and reports all others in one operation of each group.
inline constexpr size_t kMessageBytesMax = size_t{4} << 20;

/// Throws InvalidArgument if the encoding exceeds kMessageBytesMax.
std::vector<std::byte> encode(const Message& message);
std::optional<Message> decode_message(std::span<const std::byte> bytes);

std::vector<std::byte> encode(const Verdict& verdict);
std::optional<Verdict> decode_verdict(std::span<const std::byte> bytes);

std::vector<std::byte> encode(const WitnessRegister& memory);
std::optional<WitnessRegister> decode_witness(std::span<const std::byte> bytes);

}  // namespace tokenyard::membership
