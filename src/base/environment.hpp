/// Environment variables, all of which are read here and nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tokenyard {

/// What a launcher (torchrun, mpirun, a script) says about this process. A variable that is not set
/// or empty is nothing.
struct Environment {
  std::optional<uint32_t> rank;        ///< RANK
  std::optional<uint32_t> world_size;  ///< WORLD_SIZE
  std::optional<uint32_t> local_rank;  ///< LOCAL_RANK
  std::optional<std::string> address;  ///< MASTER_ADDR
  std::optional<uint16_t> port;        ///< MASTER_PORT

  /// As it is now. Throws InvalidArgument naming a variable that is not a number in range.
  static Environment read();
};

/// Returns whether a file descriptor is a terminal that understands escape sequences: TERM is set,
/// and not to "dumb".
bool understands_escapes(int descriptor);

}  // namespace tokenyard
