/// What a rank says of itself so that others can open channels to it: an address, a host, names of
/// sockets. Only a transport reads it; the control plane carries it about.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "control/words.hpp"

namespace tokenyard::control {

using Contact = std::vector<std::byte>;
using Contacts = std::map<Slot, Contact>;

}  // namespace tokenyard::control
