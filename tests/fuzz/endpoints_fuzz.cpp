// How ranks say that they are reached: control endpoints, from the store and over links, and the
// contacts of channels in them; and of network cards.
#include "collectives/transports/channel_endpoint.hpp"
#include "control/control_endpoint.hpp"
#include "fuzz/fuzz.hpp"
#include "ibgda/endpoint.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokenyard;
  fuzz::Input input(data, size);
  const auto kind = input.number<uint8_t>();
  const auto bytes = input.rest();
  if (kind == 2) {
    if (const auto decoded = from_bytes<ibgda::Endpoint>(bytes)) {
      fuzz::require_same_bytes(to_bytes(*decoded), bytes, "a card's endpoint reads as written");
      ibgda::Endpoint again;
      again.set_gid(decoded->gid());
      fuzz::require(again.gid_high == decoded->gid_high && again.gid_low == decoded->gid_low,
                    "a GID keeps its bytes");
    }
  } else if ((kind & 1) != 0) {
    if (const auto decoded = collectives::decode_contact({bytes.begin(), bytes.end()}))
      fuzz::require_same_bytes(encode(*decoded), bytes, "a contact reads as it was written");
  } else if (const auto decoded = control::decode_endpoint(bytes)) {
    fuzz::require_same_bytes(encode(*decoded), bytes, "an endpoint reads as it was written");
  }
  return 0;
}
