/// Keeps sockets out of forked children. A child that runs no other program (a data loader's
/// worker, say) inherits its parent's sockets; while it holds them, a peer does not notice that the
/// parent has died. So the child replaces each of them by /dev/null right after the fork, and exec
/// closes them all.
///
/// The child's descriptor numbers stay valid, so a later close() in the child cannot hit an
/// unrelated file. Descriptors that need more than 16 bits are not tracked, and the child keeps
/// those.
#pragma once

#include "base/file_descriptor.hpp"

namespace tokenyard::net {

// Return a non-blocking, close-on-exec socket that forked children lose. It needs no clean-up
// beyond closing it. On failure the result is empty and errno is set.
FileDescriptor open_socket(int family, int type);
/// Returns the next connection. If none waits, one may come later (as from a stopped process).
FileDescriptor accept_socket(int listener);

}  // namespace tokenyard::net
