/// Where others reach this process, as well as can be found out.
#pragma once

#include <string>

namespace tokenyard::collectives {

/// The address that packets to the store leave from; for a store that is a directory, those to the
/// world at large; without a route there, that of the first interface; without one, loopback.
/// Nothing is sent.
std::string own_address(const std::string& store);

}  // namespace tokenyard::collectives
