#include "collectives/transports/interconnect.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

InterconnectPlugin::InterconnectPlugin(const std::string& library) {
  // Never unloaded: network libraries start threads and install handlers, and few can be removed.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    throw Unsupported("interconnect " + library, why != nullptr ? why : "it cannot be loaded");
  }
  const auto* const version =
      static_cast<const uint32_t*>(dlsym(handle, "tokenyard_interconnect_version"));
  make_ = reinterpret_cast<MakeInterconnect*>(dlsym(handle, "tokenyard_make_interconnect"));
  if (version == nullptr || make_ == nullptr) {
    throw Unsupported("interconnect " + library, "it is no Tokenyard plug-in");
  }
  if (*version != kInterconnectVersion) {
    throw Unsupported("interconnect " + library, fmt::format("it was built for version {}, not {}",
                                                             *version, kInterconnectVersion));
  }
}

std::unique_ptr<Interconnect> InterconnectPlugin::make() const {
  return std::unique_ptr<Interconnect>(make_());
}

}  // namespace tokenyard::collectives
