/// Shared objects for networks that a site has and Tokenyard does not need, loaded on request.
#pragma once

#include <array>
#include <csignal>
#include <cstdint>
#include <string>

namespace tokenyard {

/// Leaves a process's signal handlers as they are: libraries of network cards install their own, to
/// write a trace of a crash.
class KeptSignals {
 public:
  KeptSignals();
  ~KeptSignals();
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGABRT,
                                          SIGFPE,  SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> handlers_{};
};

/// The exports that a shared object must have.
struct PluginSymbols {
  const char* version;  ///< a uint32_t
  uint32_t expected;
  const char* function;
};

/// Loads a shared object, a path or a name that the system's loader finds or that lies beside this
/// library, and returns its function. It stays loaded. Throws Unsupported if it is missing or has
/// another version.
void* load_plugin(const std::string& library, const PluginSymbols& symbols);

}  // namespace tokenyard
