#include "control/control_endpoint.hpp"

#include "base/byte_stream.hpp"

namespace tokenyard::control {

void visit(auto& stream, MaybeConst<ControlEndpoint> auto& endpoint) {
  stream.wide(endpoint.member.slot, membership::kSlotsMax - 1);
  stream.wide(endpoint.member.incarnation);
  stream.require(endpoint.member.incarnation != 0);
  stream.wide(endpoint.size, membership::kSlotsMax);
  stream.text(endpoint.address, kAddressMax);
  stream.wide(endpoint.port);
  stream.text(endpoint.contact, kContactMax);
}

std::vector<std::byte> encode(const ControlEndpoint& endpoint) {
  return to_bytes(endpoint);
}

std::optional<ControlEndpoint> decode_endpoint(std::span<const std::byte> bytes) {
  return from_bytes<ControlEndpoint>(bytes);
}

}  // namespace tokenyard::control
