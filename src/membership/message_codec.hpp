/// Messages of the membership as bytes. What comes from outside may be anything: bytes that no
/// encoder would have written give nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "membership/message.hpp"
#include "membership/witness.hpp"

namespace tokenyard::membership {

/// Any message of kSlotsMax members with 80 groups of all: even the promise of one that has
/// accepted a verdict, and names all the others in an operation of each group.
inline constexpr size_t kMessageBytesMax = size_t{4} << 20;

/// Throws InvalidArgument if it would take more than kMessageBytesMax.
std::vector<std::byte> encode(const Message& message);
std::optional<Message> decode_message(std::span<const std::byte> bytes);

std::vector<std::byte> encode(const Verdict& verdict);
std::optional<Verdict> decode_verdict(std::span<const std::byte> bytes);

std::vector<std::byte> encode(const WitnessRegister& memory);
std::optional<WitnessRegister> decode_witness(std::span<const std::byte> bytes);

}  // namespace tokenyard::membership
