#include "collectives/transports/channel_endpoint.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <span>

#include "base/little_endian.hpp"

namespace tokenyard::collectives {

namespace {

constexpr std::byte kEndpointVersion{1};
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

/// Reads an encoded endpoint's fields in order. Once one is cut off, it and all later ones are read
/// as empty and `complete` is false.
struct FieldReader {
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
    const size_t length = number();
    complete = complete && length <= kTextBytesMax;
    const auto bytes = take(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

}  // namespace

Contact encode(const ChannelEndpoint& endpoint) {
  Contact out{kEndpointVersion};
  append_text(out, endpoint.host);
  append_text(out, endpoint.mailbox);
  append_text(out, endpoint.address);
  append_number(out, endpoint.port);
  return out;
}

std::optional<ChannelEndpoint> decode_contact(const Contact& contact) {
  if (contact.empty() || contact.front() != kEndpointVersion) return std::nullopt;
  FieldReader reader{std::span(contact).subspan(1)};
  ChannelEndpoint endpoint;
  endpoint.host = reader.text();
  endpoint.mailbox = reader.text();
  endpoint.address = reader.text();
  endpoint.port = reader.number();
  if (!reader.complete || !reader.rest.empty()) return std::nullopt;
  return endpoint;
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
