/// Connections belong to the process that has made them. What it forks without another program (a
/// data loader's workers, say) would have them, too, and as long as it lives nobody would see that
/// the rank has died. So a child lets go of them at once.
///
/// Its descriptors stay, and lead nowhere: whoever closes one there closes nobody else's.
#pragma once

namespace tokenyard::collectives {

/// Of a socket, for as long as it is open; nothing is to be undone. A system with descriptors of
/// more than 16 bits shares those beyond with its children.
void keep_from_forks(int socket);

}  // namespace tokenyard::collectives
