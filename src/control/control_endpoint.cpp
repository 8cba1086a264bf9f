#include "control/control_endpoint.hpp"

#include <string_view>

#include "net/payload.hpp"

namespace tokenyard::control {

std::vector<std::byte> encode(const ControlEndpoint& endpoint) {
  net::PayloadWriter writer;
  writer.number(endpoint.member.slot);
  writer.number(endpoint.member.incarnation);
  writer.number(endpoint.size);
  writer.text(endpoint.address);
  writer.number(endpoint.port);
  writer.text({reinterpret_cast<const char*>(endpoint.contact.data()), endpoint.contact.size()});
  return writer.take();
}

std::optional<ControlEndpoint> decode_endpoint(std::span<const std::byte> bytes) {
  net::PayloadReader reader(bytes);
  ControlEndpoint endpoint;
  endpoint.member.slot = reader.up_to<Slot>(membership::kSlotsMax - 1);
  endpoint.member.incarnation = reader.number();
  endpoint.size = reader.up_to<uint32_t>(membership::kSlotsMax);
  endpoint.address = reader.text();
  endpoint.port = reader.up_to<uint16_t>(UINT16_MAX);
  const std::string contact = reader.text();
  const bool fits = endpoint.address.size() <= kAddressMax && contact.size() <= kContactMax;
  if (!fits || endpoint.member.incarnation == 0 || !reader.ok() || !reader.at_end()) {
    return std::nullopt;
  }
  const auto* begin = reinterpret_cast<const std::byte*>(contact.data());
  endpoint.contact.assign(begin, begin + contact.size());
  return endpoint;
}

}  // namespace tokenyard::control
