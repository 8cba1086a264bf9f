#include <fmt/format.h>

#include "tokenyard/collectives.hpp"

namespace tokenyard {

size_t bytes_of(DataType type) {
  switch (type) {
    case DataType::boolean:
    case DataType::uint8:
    case DataType::int8:
      return 1;
    case DataType::uint16:
    case DataType::int16:
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    case DataType::uint32:
    case DataType::int32:
    case DataType::float32:
      return 4;
    case DataType::uint64:
    case DataType::int64:
    case DataType::float64:
    case DataType::complex64:
      return 8;
    case DataType::complex128:
      return 16;
  }
  throw InvalidArgument("type", "a DataType", fmt::format("{}", static_cast<int>(type)));
}

std::string name_of(DataType type) {
  switch (type) {
    case DataType::boolean:
      return "bool";
    case DataType::uint8:
      return "uint8";
    case DataType::int8:
      return "int8";
    case DataType::uint16:
      return "uint16";
    case DataType::int16:
      return "int16";
    case DataType::uint32:
      return "uint32";
    case DataType::int32:
      return "int32";
    case DataType::uint64:
      return "uint64";
    case DataType::int64:
      return "int64";
    case DataType::float16:
      return "float16";
    case DataType::bfloat16:
      return "bfloat16";
    case DataType::float32:
      return "float32";
    case DataType::float64:
      return "float64";
    case DataType::complex64:
      return "complex64";
    case DataType::complex128:
      return "complex128";
  }
  return fmt::format("DataType({})", static_cast<int>(type));
}

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
