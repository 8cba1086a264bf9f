#include "fabric/proxy/transport_plugin.hpp"

#include "fabric/plugin.hpp"

namespace tokenyard {

std::unique_ptr<TransportMaker> make_by_plugin(const PluginOptions& options,
                                               const TransportPlace& place) {
  const KeptSignals kept;
  auto* const make = reinterpret_cast<MakeTransport*>(
      load_plugin(options.library, {.version = "tokenyard_transport_version",
                                    .expected = kTransportVersion,
                                    .function = "tokenyard_make_transport"}));
  return std::unique_ptr<TransportMaker>(make(place, options));
}

}  // namespace tokenyard
