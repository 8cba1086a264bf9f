#include "gin/gin_plugin.hpp"

#include "fabric/plugin.hpp"

namespace tokenyard::gin {

std::shared_ptr<GinDriver> load_gin_driver(const std::string& library) {
  const KeptSignals kept;
  auto* const make =
      reinterpret_cast<MakeGinDriver*>(load_plugin(library, {.version = "tokenyard_gin_version",
                                                             .expected = kGinVersion,
                                                             .function = "tokenyard_gin_driver"}));
  return std::shared_ptr<GinDriver>(make());
}

}  // namespace tokenyard::gin
