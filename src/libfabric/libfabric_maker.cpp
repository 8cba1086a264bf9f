#include "libfabric/libfabric_maker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::libfabric {

namespace {

const char* text_of(Order order) {
  switch (order) {
    case Order::promised:
      return "in the network's order";
    case Order::counted:
      return "puts are counted";
    case Order::delivered:
      break;
  }
  return "signals wait for puts";
}

}  // namespace

LibfabricMaker::LibfabricMaker(std::unique_ptr<Provider> provider, const TransportPlace& place)
    : place_(place),
      name_("libfabric:" + provider->facts().name),
      provider_(std::move(provider)),
      options_{.place = place, .own = {}, .peers = {}} {
  const Provider::Facts& facts = provider_->facts();
  const size_t each = facts.receives_max / std::max(place.ranks - 1, 1u);
  if (each < kCreditsMin) {
    throw Unsupported(name_, fmt::format("it holds {} messages, too few for {} ranks",
                                         facts.receives_max, place.ranks));
  }
  options_.own = {.address = provider_->address(),
                  .token = net::random_number(),
                  .credits = static_cast<uint32_t>(std::min<size_t>(each, kCreditsMax))};
  why_no_gpu_memory_ = facts.why_no_gpu_memory;
  way_ = fmt::format("proxy/libfabric, {} on {}, {}", facts.name, facts.interface,
                     text_of(order_of(facts)));
}

std::vector<std::byte> LibfabricMaker::card() const {
  return to_bytes(options_.own);
}

void LibfabricMaker::begin(const TransportCards& cards, const std::vector<bool>& reached) {
  options_.peers.resize(cards.size());
  for (uint32_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].empty()) continue;
    auto card = from_bytes<PeerCard>(cards[rank]);
    if (!card) throw InvalidArgument("network", "an endpoint", "other bytes", rank);
    if (reached[rank]) options_.peers[rank] = *std::move(card);
  }
}

bool LibfabricMaker::step(TimePoint) {
  if (!transport_)
    transport_ = std::make_unique<LibfabricTransport>(std::move(provider_), std::move(options_));
  return transport_->meet();
}

std::optional<std::string> LibfabricMaker::missing() const {
  const auto missing = transport_ ? transport_->missing() : std::nullopt;
  if (!missing) return std::nullopt;
  const auto& [rank, why] = *missing;
  return fmt::format("does not reach rank {} by {}: {}; does its interface lead there?", rank,
                     name_, why);
}

std::string LibfabricMaker::way(uint32_t) const {
  return way_;
}

}  // namespace tokenyard::libfabric

extern "C" {

[[gnu::visibility("default")]] extern const uint32_t tokenyard_transport_version =
    tokenyard::kTransportVersion;

[[gnu::visibility("default")]] tokenyard::TransportMaker* tokenyard_make_transport(
    const tokenyard::TransportPlace& place, const tokenyard::PluginOptions& options) {
  using namespace tokenyard::libfabric;
  return new LibfabricMaker(provider_for(options, place), place);
}
}
