/// NCCL's side of the network as a shared object, loaded only when somebody asks for it: it is
/// built where NCCL's headers are, for the one version that they have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gin/gin_driver.hpp"

namespace tokenyard::gin {

/// The shared object exports `tokenyard_gin_version`, the version of gin_driver.hpp for which it
/// was built, and `tokenyard_gin_driver`, a MakeGinDriver.
inline constexpr uint32_t kGinVersion = 1;
using MakeGinDriver = GinDriver*();

/// Loads the plug-in. Throws Unsupported if it is missing or has another version.
std::shared_ptr<GinDriver> load_gin_driver(const std::string& library = "libtokenyard_nccl_gin.so");

}  // namespace tokenyard::gin
