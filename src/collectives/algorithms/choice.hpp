/// Chooses the algorithm of an operation, and says why.
#pragma once

#include <string>

#include "collectives/interfaces/attempt.hpp"
#include "collectives/interfaces/signature.hpp"

namespace tokenyard::collectives {

/// The properties of a team that a choice depends on.
struct Shape {
  uint32_t ranks = 0;
  uint32_t hosts = 0;
};
Shape shape_of(const Team& team, const std::vector<uint32_t>& host_of);

struct Choice {
  Algorithm algorithm = Algorithm::direct;
  bool by_host = false;   ///< first within each host, then between one rank per host
  const char* rule = "";  ///< "> 64 KiB within a host"
  std::string text(size_t bytes, const Shape& shape) const;
};

/// Chooses alike on all ranks that pass the same `bytes`. Throws InvalidArgument for an algorithm
/// that the operation does not have.
Choice choose(OperationKind kind, DataType type, size_t bytes, const Shape& shape,
              Algorithm wanted);

/// Results up to this many bytes are staged; see Undo.
constexpr size_t staged_bytes_max = size_t{64} << 10;

}  // namespace tokenyard::collectives
