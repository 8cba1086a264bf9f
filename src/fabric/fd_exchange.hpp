/// Passing open files between the processes of one host: a memfd, or a GPU allocation that was
/// exported as a file descriptor.
#pragma once

#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "fabric/bootstrap.hpp"

namespace tokenyard {

/// Collective. Every rank's descriptor, in rank order, as descriptors of this process (its own is a
/// duplicate). All ranks are on one host. They pass through Unix sockets with abstract names, so
/// nothing is left in a file system; a connection counts only with this world's secret and from
/// this user. Throws PeerTimeout or PeerLost naming a rank that did not come, OsError.
std::vector<FileDescriptor> exchange_fds(Bootstrap& bootstrap, int mine, const std::string& what,
                                         TimePoint until);

}  // namespace tokenyard
