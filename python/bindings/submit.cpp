#include "submit.hpp"

#include <fmt/format.h>

namespace tokenyard::python {
namespace {

static_assert(uint8_t(core::Type::complex128) == uint8_t(DataType::complex128));
static_assert(uint8_t(core::Type::bfloat16) == uint8_t(DataType::bfloat16));
static_assert(uint8_t(core::Reduction::bit_xor) == uint8_t(ReduceOp::bit_xor));

template <class A>
std::vector<A> views_of(const core::Array* arrays, uint64_t count) {
  std::vector<A> result;
  result.reserve(count);
  for (const core::Array& array : std::span(arrays, count))
    result.push_back(A(array.data, static_cast<DataType>(array.type), {array.elements}));
  return result;
}

/// Returns the array of an operation that takes exactly one.
template <class A>
A one_of(const char* argument, const core::Array* arrays, uint64_t count) {
  if (count != 1) throw InvalidArgument(argument, "one array", fmt::format("{}", count));
  return A(arrays->data, static_cast<DataType>(arrays->type), {arrays->elements});
}

}  // namespace

Work submit(Group& group, const core::Operation& operation) {
  const auto in = [&] { return one_of<ConstTensorView>("in", operation.in, operation.ins); };
  const auto out = [&] { return one_of<TensorView>("out", operation.out, operation.outs); };
  const auto ins = [&] { return views_of<ConstTensorView>(operation.in, operation.ins); };
  const auto outs = [&] { return views_of<TensorView>(operation.out, operation.outs); };
  const auto op = static_cast<ReduceOp>(operation.reduction);
  const uint32_t peer = operation.peer;
  CallOptions options;
  options.algorithm = static_cast<Algorithm>(operation.algorithm);
  if (operation.timeout_ns >= 0) options.timeout = std::chrono::nanoseconds(operation.timeout_ns);

  switch (operation.kind) {
    case core::Kind::all_reduce:
      if (operation.outs == 1) return group.all_reduce(out(), op, options);
      return group.all_reduce(outs(), op, options);
    case core::Kind::reduce:
      return group.reduce(out(), op, peer, options);
    case core::Kind::broadcast:
      return group.broadcast(out(), peer, options);
    case core::Kind::all_gather:
      return group.all_gather(in(), outs(), options);
    case core::Kind::gather:
      return group.gather(in(), outs(), peer, options);
    case core::Kind::scatter:
      return group.scatter(ins(), out(), peer, options);
    case core::Kind::reduce_scatter:
      return group.reduce_scatter(ins(), out(), op, options);
    case core::Kind::all_to_all:
      return group.all_to_all(ins(), outs(), options);
    case core::Kind::barrier:
      return group.barrier(options);
    case core::Kind::monitored_barrier:
      return group.monitored_barrier(options);
    case core::Kind::send:
      return group.send(in(), peer, operation.tag, options);
    case core::Kind::receive: {
      const auto from = operation.from_anybody ? std::nullopt : std::optional(peer);
      return group.receive(out(), from, operation.tag, options);
    }
  }
  throw InternalError("an operation without a kind");
}

}  // namespace tokenyard::python
