/// Which algorithm an operation uses, and why.
#pragma once

#include <string>

#include "collectives/interfaces/attempt.hpp"
#include "collectives/interfaces/signature.hpp"

namespace tokenyard::collectives {

/// What matters about who takes part.
struct Shape {
  uint32_t ranks = 0;
  uint32_t hosts = 0;
};
Shape shape_of(const Team& team, const std::vector<uint32_t>& host_of);

struct Choice {
  Algorithm algorithm = Algorithm::direct;
  bool by_host = false;   ///< within hosts first, then one rank of each between them
  const char* rule = "";  ///< "> 64 KiB within a host"
  std::string text(size_t bytes, const Shape& shape) const;
};

/// The same on all ranks, as long as `bytes` is. Throws InvalidArgument for an algorithm that the
/// operation does not have.
Choice choose(OperationKind kind, DataType type, size_t bytes, const Shape& shape,
              Algorithm wanted);

/// Results up to this are staged, see Undo.
constexpr size_t staged_bytes_max = size_t{64} << 10;

}  // namespace tokenyard::collectives
