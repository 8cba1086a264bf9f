/// The data by which a rank lets others open channels to it (address, host, names of sockets). Only
/// a transport interprets it; the control plane carries it.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "control/words.hpp"

namespace tokenyard::control {

using Contact = std::vector<std::byte>;
using Contacts = std::map<Slot, Contact>;

}  // namespace tokenyard::control
