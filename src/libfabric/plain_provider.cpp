#include "libfabric/libfabric_maker.hpp"

namespace tokenyard::libfabric {

std::unique_ptr<Provider> provider_for(const PluginOptions& options, const TransportPlace& place) {
  return open_provider({.provider = options.provider,
                        .interface = options.interface,
                        .address = place.address,
                        .gpu = place.gpu});
}

}  // namespace tokenyard::libfabric
