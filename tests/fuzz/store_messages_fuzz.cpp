// Requests to a store and its replies, once their seals have been opened.
#include "control/store_protocol.hpp"
#include "fuzz/fuzz.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard::control::store_protocol {
namespace {

void run(fuzz::Input input) {
  const bool request = input.flag();
  net::SealedFrame frame{.kind = static_cast<uint16_t>(input.up_to(6)), .payload = {}};
  const auto payload = input.rest();
  frame.payload.assign(payload.begin(), payload.end());
  if (request) {
    const Request decoded = decode_request(frame);
    fuzz::require_same_bytes(encode(decoded), payload, "a request reads as it was written");
    fuzz::require(decoded.key.size() <= kKeyMax && decoded.value.size() <= kValueMax,
                  "a request keeps its limits");
  } else {
    const Reply decoded = decode_reply(frame, Verb::reply);
    fuzz::require_same_bytes(encode(decoded), payload, "a reply reads as it was written");
  }
}

}  // namespace
}  // namespace tokenyard::control::store_protocol

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    tokenyard::control::store_protocol::run({data, size});
  } catch (const tokenyard::net::ProtocolError&) {
    // The peer is refused.
  }
  return 0;
}
