#include <fmt/format.h>

#include "tokenyard/collectives.hpp"

namespace tokenyard {

std::string name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::average:
      return "average";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::bit_and:
      return "bit_and";
    case ReduceOp::bit_or:
      return "bit_or";
    case ReduceOp::bit_xor:
      return "bit_xor";
  }
  return fmt::format("ReduceOp({})", static_cast<int>(op));
}

std::string name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic:
      return "automatic";
    case Algorithm::doubling:
      return "doubling";
    case Algorithm::halving_doubling:
      return "halving_doubling";
    case Algorithm::ring:
      return "ring";
    case Algorithm::tree:
      return "tree";
    case Algorithm::direct:
      return "direct";
  }
  return fmt::format("Algorithm({})", static_cast<int>(algorithm));
}

}  // namespace tokenyard
