#include "fabric/proxy/transport_plugin.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <csignal>
#include <filesystem>

#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

/// Leaves a process's signal handlers as they are: libraries of network cards install their own, to
/// write a trace of a crash.
class KeptSignals {
 public:
  KeptSignals() {
    for (size_t index = 0; index < kSignals.size(); ++index)
      sigaction(kSignals[index], nullptr, &handlers_[index]);
  }
  ~KeptSignals() {
    for (size_t index = 0; index < kSignals.size(); ++index)
      sigaction(kSignals[index], &handlers_[index], nullptr);
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGABRT,
                                          SIGFPE,  SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> handlers_{};
};

void* load_plugin(const std::string& library, std::string& why) {
  if (void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  const char* const error = dlerror();
  why = error != nullptr ? error : "it cannot be loaded";
  Dl_info here{};
  if (library.find('/') != std::string::npos ||
      dladdr(reinterpret_cast<const void*>(&make_by_plugin), &here) == 0 ||
      here.dli_fname == nullptr)
    return nullptr;
  const auto beside = std::filesystem::path(here.dli_fname).parent_path() / library;
  return dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

std::unique_ptr<TransportMaker> make_by_plugin(const PluginOptions& options,
                                               const TransportPlace& place) {
  const std::string what = "the network's plug-in " + options.library;
  std::string why;
  const KeptSignals kept;
  void* const handle = load_plugin(options.library, why);
  if (handle == nullptr) throw Unsupported(what, why);
  const auto* const version =
      static_cast<const uint32_t*>(dlsym(handle, "tokenyard_transport_version"));
  auto* const make = reinterpret_cast<MakeTransport*>(dlsym(handle, "tokenyard_make_transport"));
  if (version == nullptr || make == nullptr)
    throw Unsupported(what, "it is no plug-in of Tokenyard");
  if (*version != kTransportVersion) {
    throw Unsupported(
        what, fmt::format("it was built for version {}, not {}", *version, kTransportVersion));
  }
  return std::unique_ptr<TransportMaker>(make(place, options));
}

}  // namespace tokenyard
