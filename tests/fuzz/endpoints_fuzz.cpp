// How ranks say that they are reached: control endpoints, from the store and over links, and the
// contacts of channels in them; and how their networks do.
#include "collectives/transports/channel_endpoint.hpp"
#include "control/control_endpoint.hpp"
#include "fabric/proxy/proxy_card.hpp"
#include "fabric/proxy/tcp_card.hpp"
#include "fuzz/fuzz.hpp"
#include "gin/endpoint.hpp"
#include "ibgda/endpoint.hpp"
#include "libfabric/peer_card.hpp"

namespace tokenyard {
namespace {

/// Returns the value, if the bytes are one's.
template <class T>
std::optional<T> read(std::span<const std::byte> bytes) {
  auto decoded = from_bytes<T>(bytes);
  if (decoded) fuzz::require_same_bytes(to_bytes(*decoded), bytes, "it reads as it was written");
  return decoded;
}

void run(uint8_t kind, std::span<const std::byte> bytes) {
  switch (kind) {
    case 2:
      if (const auto decoded = read<ibgda::Endpoint>(bytes)) {
        ibgda::Endpoint again;
        again.set_gid(decoded->gid());
        fuzz::require(again.gid_high == decoded->gid_high && again.gid_low == decoded->gid_low,
                      "a GID keeps its bytes");
      }
      return;
    case 4:
      if (const auto decoded = read<gin::Endpoint>(bytes)) {
        gin::Endpoint again;
        again.set_id(decoded->id());
        fuzz::require(again.id_words == decoded->id_words, "an id keeps its bytes");
        constexpr uint32_t kRanks = 3;
        const uint64_t end = decoded->words + uint64_t{kRanks} * decoded->queues * sizeof(uint64_t);
        fuzz::require(!decoded->has_words_of(kRanks) ||
                          (decoded->words <= end && end <= decoded->arena_bytes),
                      "cards put into the arena alone");
      }
      return;
    case 6:
      read<ProxyCard>(bytes);
      return;
    case 8:
      read<TcpCard>(bytes);
      return;
    case 10:
      read<libfabric::PeerCard>(bytes);
      return;
    default:
      break;
  }
  if ((kind & 1) != 0) {
    if (const auto decoded = collectives::decode_contact({bytes.begin(), bytes.end()}))
      fuzz::require_same_bytes(encode(*decoded), bytes, "a contact reads as it was written");
  } else if (const auto decoded = control::decode_endpoint(bytes)) {
    fuzz::require_same_bytes(encode(*decoded), bytes, "an endpoint reads as it was written");
  }
}

}  // namespace
}  // namespace tokenyard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tokenyard::fuzz::Input input(data, size);
  const auto kind = input.number<uint8_t>();
  tokenyard::run(kind, input.rest());
  return 0;
}
