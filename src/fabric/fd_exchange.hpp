/// Passes file descriptors between the processes of one host: of a memfd, or of an exported GPU
/// allocation.
#pragma once

#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "fabric/bootstrap.hpp"

namespace tokenyard {

/// Collective. Returns the descriptor of each rank of `near`, the ranks of this rank's host (empty:
/// all of them), in rank order, as descriptors of this process (its own is a duplicate, any other
/// rank's is empty). They travel over Unix sockets with abstract names, which leave nothing in a
/// file system; a connection is accepted only from this user and with the receiver's secret. Throws
/// OsError, or PeerTimeout or PeerLost naming the missing rank.
std::vector<FileDescriptor> exchange_fds(Bootstrap& bootstrap, int mine, const std::string& what,
                                         TimePoint until, const std::vector<bool>& near = {});

}  // namespace tokenyard
