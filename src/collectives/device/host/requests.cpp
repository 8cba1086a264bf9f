#include "collectives/device/host/requests.hpp"

#include <fmt/format.h>

namespace tokenyard::device_collectives {

namespace {

bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce ||
         operation == Operation::reduce_scatter;
}

bool is_float(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16 || type == DataType::float32 ||
         type == DataType::float64 || type == DataType::float8_e4m3fn ||
         type == DataType::float8_e5m2;
}

void check_reducible(DataType type, ReduceOp op, double factor) {
  if (type == DataType::complex64 || type == DataType::complex128)
    throw InvalidArgument("input", "elements of a type that devices reduce",
                          tokenyard::name_of(type));
  const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
  if ((op == ReduceOp::average && !is_float(type)) || (bitwise && is_float(type)))
    throw InvalidArgument("op", fmt::format("a reduction that {} has", tokenyard::name_of(type)),
                          tokenyard::name_of(op));
  if (factor != 1 && (op != ReduceOp::sum || !is_float(type)))
    throw InvalidArgument("factor", "1, unless floats are summed", fmt::format("{}", factor));
}

}  // namespace

void check_array(const char* argument, const ConstTensorView& view) {
  if (!view.given()) throw InvalidArgument(argument, "an array", "none");
  if (!view.contiguous()) throw InvalidArgument(argument, "a contiguous array", "gaps");
  if (view.data == nullptr && view.elements() > 0)
    throw InvalidArgument(argument, "an address", "null");
  if (reinterpret_cast<uintptr_t>(view.data) % bytes_of(view.type) != 0 && view.elements() > 0)
    throw InvalidArgument(argument, "an address that is a multiple of the element's size",
                          fmt::format("{}", view.data));
}

void check_parts(const char* argument, const ConstTensorView& view, DataType type,
                 uint64_t elements) {
  if (view.type != type)
    throw InvalidArgument(argument, tokenyard::name_of(type), tokenyard::name_of(view.type));
  if (view.elements() != elements)
    throw InvalidArgument(argument, fmt::format("{} elements", elements),
                          fmt::format("{}", view.elements()));
}

Movement movement_of(const Request& request) {
  const Operation operation = request.operation;
  Movement movement{.reduces = reduces(operation), .root = request.root};
  if (operation == Operation::barrier) return movement;
  movement.only_from_root = operation == Operation::broadcast || operation == Operation::scatter;
  movement.only_to_root = operation == Operation::reduce || operation == Operation::gather;
  movement.input_has_parts = operation == Operation::scatter ||
                             operation == Operation::reduce_scatter ||
                             operation == Operation::all_to_all;
  movement.result_has_parts = operation == Operation::all_gather ||
                              operation == Operation::gather || operation == Operation::all_to_all;
  if (request.root >= request.ranks)
    throw InvalidArgument("root", fmt::format("a rank below {}", request.ranks),
                          fmt::format("{}", request.root));
  const bool has_input = movement.has_input(request.rank);
  const bool has_result = movement.has_result(request.rank);
  if (has_input) check_array("input", request.input);
  if (has_result) check_array("result", request.result);
  if (movement.reduces) check_reducible(request.input.type, request.op, request.factor);
  const uint64_t whole =
      has_input ? request.input.elements() / (movement.input_has_parts ? request.ranks : 1)
                : request.result.elements() / (movement.result_has_parts ? request.ranks : 1);
  if (has_input && has_result) {
    if (movement.input_has_parts && !movement.result_has_parts)
      check_parts("input", request.input, request.result.type,
                  request.result.elements() * request.ranks);
    else
      check_parts("result", request.result, request.input.type,
                  request.input.elements() *
                      (movement.result_has_parts && !movement.input_has_parts ? request.ranks : 1));
  }
  if (has_input && movement.input_has_parts && request.input.elements() % request.ranks != 0)
    throw InvalidArgument("input", fmt::format("{} parts of equal size", request.ranks),
                          fmt::format("{} elements", request.input.elements()));
  movement.part = whole * bytes_of(request.type());
  movement.end = movement.part;
  const bool has_parts = movement.input_has_parts || movement.result_has_parts;
  movement.whole = movement.part * (has_parts ? request.ranks : 1);
  return movement;
}

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::barrier:
      return "barrier";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce:
      return "reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_gather:
      return "all_gather";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_to_all:
      return "all_to_all";
  }
  return "unknown";
}

bool has_root(Operation operation) {
  return operation == Operation::reduce || operation == Operation::broadcast ||
         operation == Operation::gather || operation == Operation::scatter;
}

bool overwrites_input(const Request& request) {
  const ConstTensorView &input = request.input, &result = request.result;
  if (!input.given() || !result.given() || input.elements() == 0) return false;
  // Other operations write around the part of the input that lies in the result.
  if (!reduces(request.operation) && request.operation != Operation::all_to_all) return false;
  const auto at = [](const ConstTensorView& view) {
    return reinterpret_cast<uintptr_t>(view.data);
  };
  return at(input) < at(result) + result.bytes() && at(result) < at(input) + input.bytes();
}

std::string describe(const Signature& signature) {
  const Operation operation = signature.operation();
  if (operation == Operation::barrier) return "barrier";
  return fmt::format(
      "{}{} of {}{}{}", name_of(operation),
      reduces(operation) ? fmt::format("({})", tokenyard::name_of(signature.op())) : "",
      tokenyard::name_of(signature.type()),
      has_root(operation) ? fmt::format(", root {}", signature.root()) : "",
      signature.protocol() == Protocol::rings      ? ", by rings"
      : signature.protocol() == Protocol::direct   ? ", in the arena"
      : signature.protocol() == Protocol::packets  ? ", in packets"
      : signature.protocol() == Protocol::messages ? ", with a size per pair"
      : signature.protocol() == Protocol::splits   ? ", with splits on the device"
                                                   : "");
}

}  // namespace tokenyard::device_collectives
