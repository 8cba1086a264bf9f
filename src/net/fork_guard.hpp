/// Connections belong to the process that has made them. What it forks without another program (a
/// data loader's workers, say) would have them, too, and as long as it lives nobody would see that
/// the rank has died. So a child lets go of them at once, and no program that is started has them.
///
/// A child's descriptors stay, and lead nowhere: whoever closes one there closes nobody else's. A
/// system with descriptors of more than 16 bits shares those beyond with its children.
#pragma once

#include "base/file_descriptor.hpp"

namespace tokenyard::net {

// Sockets that do not block and are kept from forks for as long as they are open; nothing is to be
// undone. Nothing, and errno tells why, if there is none.
FileDescriptor open_socket(int family, int type);
FileDescriptor accept_socket(int listener);

}  // namespace tokenyard::net
