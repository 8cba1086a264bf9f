#include "control/store_protocol.hpp"

#include <fmt/format.h>

#include "base/byte_stream.hpp"

namespace tokenyard::control::store_protocol {

namespace {

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

void visit_value(auto& stream, auto& value) {
  const auto flag = [](auto& to, auto& given) { to.wide(given); };
  visit_optional(stream, value, flag, [](auto& to, auto& bytes) { to.text(bytes); });
}

}  // namespace

void visit(auto& stream, MaybeConst<Request> auto& request) {
  stream.text(request.key, kKeyMax);
  visit_value(stream, request.expected);
  stream.text(request.value, kValueMax);
}
void visit(auto& stream, MaybeConst<Reply> auto& reply) {
  visit_value(stream, reply.value);
  stream.wide(reply.full);
}

std::vector<std::byte> encode(const Request& request) {
  return to_bytes(request);
}

std::vector<std::byte> encode(const Reply& reply) {
  return to_bytes(reply);
}

Request decode_request(const net::SealedFrame& frame) {
  auto request = from_bytes<Request>(frame.payload);
  const auto verb = static_cast<Verb>(frame.kind);
  const bool known = verb == Verb::get || verb == Verb::set || verb == Verb::compare_and_set;
  if (!known || !request) throw net::ProtocolError("sent an invalid store request");
  request->verb = verb;
  return *std::move(request);
}

Reply decode_reply(const net::SealedFrame& frame, Verb verb) {
  if (frame.kind != static_cast<uint16_t>(verb)) {
    throw net::ProtocolError(fmt::format("sent {} where {} was expected", text_of_verb(frame.kind),
                                         text_of_verb(static_cast<uint16_t>(verb))));
  }
  auto reply = from_bytes<Reply>(frame.payload);
  if (!reply) throw net::ProtocolError("sent an invalid store reply");
  return *std::move(reply);
}

net::Key key_of(const std::string& secret) {
  return net::Key(secret, "tokenyard store");
}

net::Introduction introduction() {
  return {.purpose = net::Purpose::store, .job = 0, .self = {}, .epoch = 0, .sought = 0};
}

}  // namespace tokenyard::control::store_protocol
