/// The driver of RDMA cards as a shared object, loaded only when somebody asks for cards: a host
/// without rdma-core has none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ibgda/rdma_driver.hpp"

namespace tokenyard::ibgda {

/// The shared object exports `tokenyard_rdma_version`, the version of rdma_driver.hpp for which it
/// was built, and `tokenyard_rdma_driver`, a MakeRdmaDriver.
inline constexpr uint32_t kRdmaVersion = 1;
using MakeRdmaDriver = RdmaDriver*();

/// Loads the plug-in. Throws Unsupported if it is missing or has another version.
std::shared_ptr<RdmaDriver> load_rdma_driver(const std::string& library = "libtokenyard_ibgda.so");

/// Returns the cards of this host as text, for the doctor. Throws Unsupported as above, and if no
/// card can be used.
std::string rdma_text();

}  // namespace tokenyard::ibgda
