#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <concepts>
#include <span>
#include <type_traits>
#include <vector>

#include "base/tensor_arguments.hpp"
#include "base/trace_range.hpp"
#include "collectives/algorithms/reduce.hpp"
#include "collectives/runtime/group_state.hpp"

namespace tokenyard {

using collectives::Array;
using collectives::Call;
using collectives::ConstArray;
using collectives::OperationKind;

namespace {

/// The engine's array for a view: writable exactly if the view is.
template <class View>
using ArrayOf = std::conditional_t<std::same_as<View, TensorView>, Array, ConstArray>;

template <class View>
ArrayOf<View> array_of(const char* argument, const View& view) {
  if (!view.given()) {
    throw InvalidArgument(argument, "a tensor, of shape [0] if it has no elements", "none");
  }
  require_memory(argument, view);
  return {view.data, view.elements(), view.type};
}

template <class View>
std::vector<ArrayOf<View>> arrays_of(const char* argument, std::span<const View> views) {
  std::vector<ArrayOf<View>> arrays;
  for (const View& view : views) arrays.push_back(array_of(argument, view));
  return arrays;
}

void check_root(const Group::State& group, const char* argument, uint32_t root) {
  if (root < group.size()) return;
  throw InvalidArgument(argument, fmt::format("a rank of {}", group.size()), fmt::to_string(root));
}

/// Checks a list with one part per rank, all of one type.
template <typename List>
void check_parts(const Group::State& group, const char* argument, const List& parts,
                 DataType type) {
  collectives::Engine& engine = group.job->engine();
  const uint32_t size = group.size();
  const bool kept = group.job->options.places == Places::kept;
  if (kept ? parts.size() != size : parts.size() > size) {
    std::vector<uint32_t> lost;
    const std::vector<uint32_t> active = engine.identity(group.id).active_ranks(engine.view());
    for (uint32_t rank = 0; rank < size; ++rank) {
      if (std::find(active.begin(), active.end(), rank) == active.end()) lost.push_back(rank);
    }
    throw InvalidArgument(argument,
                          fmt::format("{}{} arrays{}{}{}", kept ? "" : "at most ", size,
                                      lost.empty() ? "" : " (lost: ", fmt::join(lost, ", "),
                                      lost.empty() ? ""
                                      : kept       ? "; their places are kept)"
                                                   : ")"),
                          fmt::to_string(parts.size()));
  }
  for (const auto& part : parts) {
    if (part.type != type) {
      throw InvalidArgument(argument, name_of(type), name_of(part.type));
    }
  }
}

void check_length(const char* argument, size_t expected, size_t seen) {
  if (expected == seen) return;
  throw InvalidArgument(argument, fmt::format("{} elements", expected), fmt::to_string(seen));
}

/// Checks the length of this rank's part of a list. With Places::compact its index is known only
/// when the operation begins, which checks it then.
template <typename List>
void check_own_part(const Group::State& group, const char* argument, size_t expected,
                    const List& parts) {
  if (group.job->options.places == Places::compact) return;
  check_length(argument, expected, parts[group.rank].elements);
}

template <typename List>
size_t total_of(const List& parts) {
  size_t elements = 0;
  for (const auto& part : parts) elements += part.elements;
  return elements;
}

template <typename List>
uint64_t lengths_of(const List& parts) {
  std::vector<uint64_t> lengths;
  for (const auto& part : parts) lengths.push_back(part.elements);
  return collectives::fingerprint(lengths);
}

}  // namespace

uint32_t Group::State::size() const {
  if (ranks != 0) return ranks;
  return static_cast<uint32_t>(job->engine().identity(id).slots.size());
}

void Group::State::close() {
  if (id == 0 || closed.exchange(true)) return;
  job->engine().close_group(id);
}

Work Group::State::start(Call call, const CallOptions& options) const {
  // Rejects here, alike on all ranks, an algorithm that the operation does not have.
  choose(call.signature.kind, call.signature.type, call.bytes, {.ranks = 2, .hosts = 1},
         options.algorithm);
  call.signature.algorithm = options.algorithm;
  auto outcome = job->engine().start(id, std::move(call), options.timeout.value_or(timeout));
  job->progress_thread().launched();
  return Work(std::make_shared<Work::State>(Work::State{job, std::move(outcome)}));
}

uint32_t Group::rank() const {
  return state_->rank;
}
uint32_t Group::size() const {
  return state_->size();
}
const std::string& Group::name() const {
  return state_->name;
}
void Group::close() {
  state_->close();
}
bool Group::closed() const {
  return state_->closed;
}

std::vector<uint32_t> Group::active_ranks() const {
  collectives::Engine& engine = state_->job->engine();
  return engine.identity(state_->id).active_ranks(engine.view());
}

uint32_t Group::parts() const {
  if (state_->job->options.places == Places::kept) return size();
  return static_cast<uint32_t>(active_ranks().size());
}

Work Group::all_reduce(TensorView in_out, ReduceOp op, CallOptions options) {
  return all_reduce(std::span<const TensorView>(&in_out, 1), op, options);
}

Work Group::all_reduce(std::span<const TensorView> views, ReduceOp op, CallOptions options) {
  const TraceRange range("Group.all_reduce");
  const std::vector<Array> in_out = arrays_of("in_out", views);
  Call call = {.signature = {.kind = OperationKind::all_reduce, .op = op}, .out = in_out};
  for (const Array& array : in_out) {
    collectives::check_reducible(array.type, op);
    call.bytes += array.bytes();
  }
  if (!in_out.empty()) call.signature.type = in_out[0].type;
  call.signature.elements = total_of(in_out);
  if (in_out.size() > 1) {
    std::vector<uint64_t> shapes;
    for (const Array& array : in_out) {
      shapes.push_back(array.elements);
      shapes.push_back(static_cast<uint64_t>(array.type));
    }
    call.signature.lengths = collectives::fingerprint(shapes);
  }
  return state_->start(std::move(call), options);
}

Work Group::reduce(TensorView view, ReduceOp op, uint32_t root, CallOptions options) {
  const TraceRange range("Group.reduce");
  const Array in_out = array_of("in_out", view);
  check_root(*state_, "root", root);
  collectives::check_reducible(in_out.type, op);
  return state_->start({.signature = {.kind = OperationKind::reduce,
                                      .type = in_out.type,
                                      .op = op,
                                      .root = root,
                                      .elements = in_out.elements},
                        .out = {in_out},
                        .bytes = in_out.bytes()},
                       options);
}

Work Group::broadcast(TensorView view, uint32_t root, CallOptions options) {
  const TraceRange range("Group.broadcast");
  const Array in_out = array_of("in_out", view);
  check_root(*state_, "root", root);
  return state_->start({.signature = {.kind = OperationKind::broadcast,
                                      .type = in_out.type,
                                      .root = root,
                                      .elements = in_out.elements},
                        .out = {in_out},
                        .bytes = in_out.bytes()},
                       options);
}

Work Group::all_gather(ConstTensorView from, std::span<const TensorView> into,
                       CallOptions options) {
  const TraceRange range("Group.all_gather");
  const ConstArray in = array_of("in", from);
  const std::vector<Array> out = arrays_of("out", into);
  check_parts(*state_, "out", out, in.type);
  check_own_part(*state_, "out[rank]", in.elements, out);
  const size_t elements = total_of(out);
  return state_->start({.signature = {.kind = OperationKind::all_gather,
                                      .type = in.type,
                                      .elements = elements,
                                      .lengths = lengths_of(out)},
                        .in = {in},
                        .out = out,
                        .bytes = elements * bytes_of(in.type)},
                       options);
}

Work Group::gather(ConstTensorView from, std::span<const TensorView> into, uint32_t root,
                   CallOptions options) {
  const TraceRange range("Group.gather");
  const ConstArray in = array_of("in", from);
  const std::vector<Array> out = arrays_of("out", into);
  check_root(*state_, "root", root);
  if (root == state_->rank) {
    check_parts(*state_, "out", out, in.type);
    check_own_part(*state_, "out[rank]", in.elements, out);
  }
  return state_->start({.signature = {.kind = OperationKind::gather, .type = in.type, .root = root},
                        .in = {in},
                        .out = out},
                       options);
}

Work Group::scatter(std::span<const ConstTensorView> from, TensorView into, uint32_t root,
                    CallOptions options) {
  const TraceRange range("Group.scatter");
  const std::vector<ConstArray> in = arrays_of("in", from);
  const Array out = array_of("out", into);
  check_root(*state_, "root", root);
  if (root == state_->rank) {
    check_parts(*state_, "in", in, out.type);
    check_own_part(*state_, "in[rank]", out.elements, in);
  }
  return state_->start(
      {.signature = {.kind = OperationKind::scatter, .type = out.type, .root = root},
       .in = in,
       .out = {out}},
      options);
}

Work Group::reduce_scatter(std::span<const ConstTensorView> from, TensorView into, ReduceOp op,
                           CallOptions options) {
  const TraceRange range("Group.reduce_scatter");
  const std::vector<ConstArray> in = arrays_of("in", from);
  const Array out = array_of("out", into);
  collectives::check_reducible(out.type, op);
  check_parts(*state_, "in", in, out.type);
  check_own_part(*state_, "in[rank]", out.elements, in);
  const size_t elements = total_of(in);
  return state_->start({.signature = {.kind = OperationKind::reduce_scatter,
                                      .type = out.type,
                                      .op = op,
                                      .elements = elements,
                                      .lengths = lengths_of(in)},
                        .in = in,
                        .out = {out},
                        .bytes = elements * bytes_of(out.type)},
                       options);
}

Work Group::all_to_all(std::span<const ConstTensorView> from, std::span<const TensorView> into,
                       CallOptions options) {
  const TraceRange range("Group.all_to_all");
  const std::vector<ConstArray> in = arrays_of("in", from);
  const std::vector<Array> out = arrays_of("out", into);
  const DataType type = in.empty() ? DataType::uint8 : in[0].type;
  check_parts(*state_, "in", in, type);
  check_parts(*state_, "out", out, type);
  if (state_->job->options.places == Places::kept) {
    check_length("out[rank]", in[state_->rank].elements, out[state_->rank].elements);
  }
  return state_->start({.signature = {.kind = OperationKind::all_to_all, .type = type},
                        .in = in,
                        .out = out,
                        .bytes = total_of(in) * bytes_of(type)},
                       options);
}

Work Group::barrier(CallOptions options) {
  const TraceRange range("Group.barrier");
  return state_->start({.signature = {.kind = OperationKind::barrier}}, options);
}

Work Group::monitored_barrier(CallOptions options) {
  const TraceRange range("Group.monitored_barrier");
  return state_->start({.signature = {.kind = OperationKind::monitored_barrier}}, options);
}

Work Group::send(ConstTensorView view, uint32_t to, uint64_t tag, CallOptions options) {
  const TraceRange range("Group.send");
  const ConstArray array = array_of("array", view);
  check_root(*state_, "to", to);
  if (to == state_->rank) throw InvalidArgument("to", "another rank", "this one");
  auto outcome = state_->job->engine().send(
      state_->id, array, to, tag, options.timeout.value_or(state_->timeout), state_->eager_limit);
  state_->job->progress_thread().launched();
  return Work(std::make_shared<Work::State>(Work::State{state_->job, std::move(outcome)}));
}

Work Group::receive(TensorView view, std::optional<uint32_t> from, uint64_t tag,
                    CallOptions options) {
  const TraceRange range("Group.receive");
  const Array array = array_of("array", view);
  if (from) check_root(*state_, "from", *from);
  if (from == state_->rank) throw InvalidArgument("from", "another rank", "this one");
  auto outcome = state_->job->engine().receive(state_->id, array, from, tag,
                                               options.timeout.value_or(state_->timeout));
  state_->job->progress_thread().launched();
  return Work(std::make_shared<Work::State>(Work::State{state_->job, std::move(outcome)}));
}

std::string Group::choice(const std::string& operation, size_t bytes) const {
  for (int kind = 0; kind <= static_cast<int>(OperationKind::all_to_all); ++kind) {
    if (collectives::name_of(static_cast<OperationKind>(kind)) == operation) {
      return state_->job->engine().choice(state_->id, static_cast<OperationKind>(kind), bytes);
    }
  }
  throw InvalidArgument("operation", "a collective", operation);
}

}  // namespace tokenyard
