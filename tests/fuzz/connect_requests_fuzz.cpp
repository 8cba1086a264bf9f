// Requests to connect a channel, sealed rightly, so that their fields are reached.
#include "collectives/transports/connect_request.hpp"
#include "fuzz/fuzz.hpp"

namespace tokenyard::collectives {
namespace {

constexpr size_t kSealedBytes = kConnectRequestBytes - sizeof(net::Digest);

void run(fuzz::Input input) {
  const net::Key key = wire_key("the secret of a job", "fuzz");
  const bool sealed = input.flag();
  const auto from = input.rest();
  std::vector<std::byte> bytes(from.begin(), from.end());
  if (sealed && bytes.size() >= kConnectRequestBytes) {
    const std::span<const std::byte> all(bytes);
    const net::Digest seal = key.sign({all.first(kSealedBytes), all.subspan(kConnectRequestBytes)});
    std::ranges::copy(seal, bytes.begin() + kSealedBytes);
  }
  const auto decoded = decode_connect_request(bytes, key);
  if (!decoded) return;
  fuzz::require(sealed, "no request is accepted without the job's secret");
  fuzz::require_same_bytes(encode(*decoded, key), bytes, "a request reads as it was written");
}

}  // namespace
}  // namespace tokenyard::collectives

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tokenyard::collectives::run({data, size});
  return 0;
}
