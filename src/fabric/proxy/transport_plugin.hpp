/// Transports by libraries that a site has and Tokenyard does not need: a shared object, loaded on
/// request, that makes them.
#pragma once

#include <memory>
#include <string>

#include "fabric/proxy/transport_maker.hpp"

namespace tokenyard {

struct PluginOptions {
  /// The shared object: a path, or a name that the system's loader finds or that lies beside this
  /// library.
  std::string library;
  std::string provider;  ///< empty: as the plug-in chooses
  std::string
      interface;  ///< name or address of the network interface; empty: by the rank's address
};

/// The shared object exports `tokenyard_transport_version`, the version of these files for which it
/// was built, and `tokenyard_make_transport`, a MakeTransport.
inline constexpr uint32_t kTransportVersion = 3;
using MakeTransport = TransportMaker*(const TransportPlace& place, const PluginOptions& options);

/// Loads the shared object, which stays loaded. Throws Unsupported if it is missing or has another
/// version, and what the plug-in throws if it finds no usable network.
std::unique_ptr<TransportMaker> make_by_plugin(const PluginOptions& options,
                                               const TransportPlace& place);

}  // namespace tokenyard
