/// How other processes reach this one: where it listens, and its contact for channels.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/contact.hpp"
#include "control/words.hpp"

namespace tokenyard::control {

struct ControlEndpoint {
  Member member;
  uint32_t size = 0;  ///< slots of the job, as this founder was told
  std::string address;
  uint16_t port = 0;
  Contact contact;
  bool operator==(const ControlEndpoint&) const = default;
};

inline constexpr size_t kAddressMax = 256;
inline constexpr size_t kContactMax = 64 * 1024;

std::vector<std::byte> encode(const ControlEndpoint& endpoint);
/// Returns nothing if the bytes are no endpoint.
std::optional<ControlEndpoint> decode_endpoint(std::span<const std::byte> bytes);

}  // namespace tokenyard::control
