#include "collectives/transports/contact_card.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <span>

#include "base/little_endian.hpp"

namespace tokenyard::collectives {

namespace {

constexpr std::byte kCardVersion{1};
constexpr size_t kTextBytesMax = 1024;

void append_number(Contact& out, uint16_t number) {
  const auto bytes = little_endian(number);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append_text(Contact& out, const std::string& text) {
  const size_t bytes = std::min(text.size(), kTextBytesMax);
  append_number(out, static_cast<uint16_t>(bytes));
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), begin, begin + bytes);
}

/// Takes from the front; once something is missing, everything is.
struct Taker {
  std::span<const std::byte> rest;
  bool complete = true;

  std::span<const std::byte> take(size_t bytes) {
    complete = complete && bytes <= rest.size();
    if (!complete) return {};
    const auto taken = rest.first(bytes);
    rest = rest.subspan(bytes);
    return taken;
  }
  uint16_t number() {
    auto bytes = take(sizeof(uint16_t));
    return complete ? take_number<uint16_t>(bytes) : uint16_t{0};
  }
  std::string text() {
    const auto bytes = take(number());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

}  // namespace

Contact encode(const ContactCard& card) {
  Contact out{kCardVersion};
  append_text(out, card.host);
  append_text(out, card.letterbox);
  append_text(out, card.address);
  append_number(out, card.port);
  return out;
}

std::optional<ContactCard> decode_contact(const Contact& contact) {
  if (contact.empty() || contact.front() != kCardVersion) return std::nullopt;
  Taker taker{std::span(contact).subspan(1)};
  ContactCard card;
  card.host = taker.text();
  card.letterbox = taker.text();
  card.address = taker.text();
  card.port = taker.number();
  if (!taker.complete || !taker.rest.empty()) return std::nullopt;
  return card;
}

std::string default_host() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  if (boot.empty()) {
    char name[256] = {};
    (void)gethostname(name, sizeof name - 1);
    boot = name;
  }
  struct stat net {};
  const bool known = stat("/proc/self/ns/net", &net) == 0;
  return fmt::format("{}/{}/{}", boot, known ? net.st_ino : 0, geteuid());
}

}  // namespace tokenyard::collectives
