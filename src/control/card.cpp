#include "control/card.hpp"

#include <string_view>

#include "net/payload.hpp"

namespace tokenyard::control {

std::vector<std::byte> encode(const Card& card) {
  net::PayloadWriter writer;
  writer.number(card.member.slot);
  writer.number(card.member.incarnation);
  writer.number(card.size);
  writer.text(card.address);
  writer.number(card.port);
  writer.text({reinterpret_cast<const char*>(card.contact.data()), card.contact.size()});
  return writer.take();
}

std::optional<Card> decode_card(std::span<const std::byte> bytes) {
  net::PayloadReader reader(bytes);
  Card card;
  card.member.slot = static_cast<Slot>(reader.number());
  card.member.incarnation = reader.number();
  card.size = static_cast<uint32_t>(reader.number());
  card.address = reader.text();
  card.port = static_cast<uint16_t>(reader.number());
  const std::string contact = reader.text();
  const bool fits = card.address.size() <= kAddressMax && contact.size() <= kContactMax;
  if (!fits || card.member.incarnation == 0 || !reader.ok() || !reader.at_end()) {
    return std::nullopt;
  }
  const auto* begin = reinterpret_cast<const std::byte*>(contact.data());
  card.contact.assign(begin, begin + contact.size());
  return card;
}

}  // namespace tokenyard::control
