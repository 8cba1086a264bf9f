#include "fabric/plugin.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "tokenyard/error.hpp"

namespace tokenyard {

KeptSignals::KeptSignals() {
  for (size_t index = 0; index < kSignals.size(); ++index)
    sigaction(kSignals[index], nullptr, &handlers_[index]);
}

KeptSignals::~KeptSignals() {
  for (size_t index = 0; index < kSignals.size(); ++index)
    sigaction(kSignals[index], &handlers_[index], nullptr);
}

namespace {

void* open_plugin(const std::string& library, std::string& why) {
  if (void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  const char* const error = dlerror();
  why = error != nullptr ? error : "it cannot be loaded";
  Dl_info here{};
  if (library.find('/') != std::string::npos ||
      dladdr(reinterpret_cast<const void*>(&load_plugin), &here) == 0 || here.dli_fname == nullptr)
    return nullptr;
  const auto beside = std::filesystem::path(here.dli_fname).parent_path() / library;
  return dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

void* load_plugin(const std::string& library, const PluginSymbols& symbols) {
  const std::string what = "the network's plug-in " + library;
  std::string why;
  void* const handle = open_plugin(library, why);
  if (handle == nullptr) throw Unsupported(what, why);
  const auto* const version = static_cast<const uint32_t*>(dlsym(handle, symbols.version));
  void* const function = dlsym(handle, symbols.function);
  if (version == nullptr || function == nullptr)
    throw Unsupported(what, "it is no plug-in of Tokenyard");
  if (*version != symbols.expected) {
    throw Unsupported(
        what, fmt::format("it was built for version {}, not {}", *version, symbols.expected));
  }
  return function;
}

}  // namespace tokenyard
