#include "control/store_protocol.hpp"

#include <fmt/format.h>

#include "net/payload.hpp"

namespace tokenyard::control::store_protocol {

namespace {

std::string_view text_of(const Store::Value& value) {
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

Store::Value value_of(const std::string& text) {
  const auto bytes = net::as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

std::string text_of_verb(uint16_t verb) {
  switch (static_cast<Verb>(verb)) {
    case Verb::greeting:
      return "a greeting";
    case Verb::get:
      return "a request to get";
    case Verb::set:
      return "a request to set";
    case Verb::compare_and_set:
      return "a request to compare and set";
    case Verb::reply:
      return "a reply";
  }
  return fmt::format("a message of unknown kind {}", verb);
}

void put(net::PayloadWriter& writer, const std::optional<Store::Value>& value) {
  writer.number(value ? 1 : 0);
  if (value) writer.text(text_of(*value));
}

std::optional<Store::Value> get(net::PayloadReader& reader) {
  if (!reader.flag()) return std::nullopt;
  return value_of(reader.text());
}

}  // namespace

std::vector<std::byte> encode(const Request& request) {
  net::PayloadWriter writer;
  writer.text(request.key);
  put(writer, request.expected);
  writer.text(text_of(request.value));
  return writer.take();
}

std::vector<std::byte> encode(const Reply& reply) {
  net::PayloadWriter writer;
  put(writer, reply.value);
  writer.number(reply.full ? 1 : 0);
  return writer.take();
}

Request decode_request(const net::SealedFrame& frame) {
  Request request;
  request.verb = static_cast<Verb>(frame.kind);
  const bool known = request.verb == Verb::get || request.verb == Verb::set ||
                     request.verb == Verb::compare_and_set;
  net::PayloadReader reader(frame.payload);
  request.key = reader.text();
  request.expected = get(reader);
  request.value = value_of(reader.text());
  const bool fits = request.key.size() <= kKeyMax && request.value.size() <= kValueMax;
  if (!known || !fits || !reader.ok() || !reader.at_end()) {
    throw net::ProtocolError("sent an invalid store request");
  }
  return request;
}

Reply decode_reply(const net::SealedFrame& frame, Verb verb) {
  if (frame.kind != static_cast<uint16_t>(verb)) {
    throw net::ProtocolError(fmt::format("sent {} where {} was expected", text_of_verb(frame.kind),
                                         text_of_verb(static_cast<uint16_t>(verb))));
  }
  net::PayloadReader reader(frame.payload);
  Reply reply;
  reply.value = get(reader);
  reply.full = reader.flag();
  if (!reader.ok() || !reader.at_end()) {
    throw net::ProtocolError("sent an invalid store reply");
  }
  return reply;
}

net::Key key_of(const std::string& secret) {
  return net::Key(secret, "tokenyard store");
}

net::Introduction introduction() {
  return {.purpose = net::Purpose::store, .job = 0, .self = {}, .epoch = 0, .sought = 0};
}

}  // namespace tokenyard::control::store_protocol
