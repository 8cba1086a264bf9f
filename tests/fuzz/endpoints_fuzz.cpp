// How ranks say that they are reached: control endpoints, from the store and over links, and the
// contacts of channels in them.
#include "collectives/transports/channel_endpoint.hpp"
#include "control/control_endpoint.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokenyard;
  fuzz::Input input(data, size);
  const bool contact = input.flag();
  const auto bytes = input.rest();
  if (contact) {
    if (const auto decoded = collectives::decode_contact({bytes.begin(), bytes.end()}))
      fuzz::require_same_bytes(encode(*decoded), bytes, "a contact reads as it was written");
  } else if (const auto decoded = control::decode_endpoint(bytes)) {
    fuzz::require_same_bytes(encode(*decoded), bytes, "an endpoint reads as it was written");
  }
  return 0;
}
