/// Memory that processes share by its descriptor (memfd), of a size that nobody can change: a
/// process that maps more than a file has left is killed by SIGBUS when it touches the rest.
#pragma once

#include <cstddef>
#include <optional>

#include "base/file_descriptor.hpp"

namespace tokenyard {

/// Makes such memory; `name` shows in /proc. Throws OsError.
FileDescriptor make_sealed_memory(const char* name, size_t bytes);

/// Returns the size of memory that a peer has passed; nothing if its size can change, or it is
/// something else. Throws OsError if the descriptor is invalid.
std::optional<size_t> sealed_bytes(const FileDescriptor& memory);

}  // namespace tokenyard
