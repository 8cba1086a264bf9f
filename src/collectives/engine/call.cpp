#include "collectives/engine/call.hpp"

#include <algorithm>
#include <cstring>

#include "collectives/algorithms/all_reduce.hpp"
#include "collectives/algorithms/bytes.hpp"
#include "collectives/algorithms/hierarchy.hpp"
#include "collectives/algorithms/rooted.hpp"
#include "collectives/algorithms/scattered.hpp"

namespace tokenyard::collectives {

namespace {

/// Sums of several arrays of one type, contiguous in work memory.
struct Staged {
  std::span<const Array> arrays;
  DataType type, wide;
  size_t elements = 0;

  explicit Staged(std::span<const Array> arrays)
      : arrays(arrays), type(arrays[0].type), wide(accumulator_of(type)) {
    for (const Array& array : arrays) elements += array.elements;
  }
  size_t bytes() const { return elements * bytes_of(wide); }

  std::byte* load(Undo& undo) const {
    std::byte* sums = undo.scratch(bytes());
    size_t at = 0;
    for (const Array& array : arrays) {
      widen(sums + at * bytes_of(wide), array.data, type, array.elements);
      at += array.elements;
    }
    return sums;
  }
  /// Stages the sums as the arrays' contents at the commit.
  void store(Undo& undo, std::byte* sums, ReduceOp op, uint32_t ranks) const {
    if (op == ReduceOp::average) divide(sums, wide, elements, ranks);
    std::byte* result = sums;
    if (wide != type) {
      result = undo.scratch(elements * bytes_of(type));
      narrow(result, sums, type, elements);
    }
    for (const Array& array : arrays) {
      undo.stage(array.data, result, array.bytes());
      result += array.bytes();
    }
  }
};

Task all_reduce_staged(Attempt& attempt, std::span<const Array> arrays, ReduceOp op,
                       Choice choice) {
  const Staged staged(arrays);
  std::byte* sums = staged.load(attempt.undo);
  const Summands summands = {sums, staged.elements, staged.wide, op};
  if (choice.by_host) {
    Task reduced = all_reduce_by_host(attempt, summands);
    co_await reduced;
  } else if (choice.algorithm == Algorithm::halving_doubling) {
    Task reduced = all_reduce_halving_doubling(attempt, attempt.team, summands);
    co_await reduced;
  } else if (choice.algorithm == Algorithm::ring) {
    // Computes the average itself.
    Task reduced = all_reduce_ring(attempt, attempt.team, {sums, staged.elements, staged.wide}, op);
    co_await reduced;
    op = op == ReduceOp::average ? ReduceOp::sum : op;
  } else {
    std::byte* other = attempt.undo.scratch(staged.bytes());
    Task reduced = all_reduce_doubling(attempt, attempt.team, summands, other, &sums);
    co_await reduced;
  }
  staged.store(attempt.undo, sums, op, attempt.team.size());
}

/// Returns how many adjacent arrays have one type; as they are staged anyway, they go as one array.
size_t alike(std::span<const Array> arrays) {
  size_t count = 1;
  while (count < arrays.size() && arrays[count].type == arrays[0].type) ++count;
  return count;
}

Task all_reduce(Attempt& attempt, const Call& call, Choice choice) {
  if (attempt.team.size() == 1) co_return;
  const ReduceOp op = call.signature.op;
  const bool direct = choice.algorithm == Algorithm::direct;
  std::span<const Array> rest = call.out;
  if (direct || choice.algorithm == Algorithm::ring) {
    size_t bytes = 0;
    for (const Array& array : rest) bytes += array.elements * bytes_of(accumulator_of(array.type));
    attempt.undo.reserve(bytes);
  }
  while (!rest.empty()) {
    const bool in_place = direct || (choice.algorithm == Algorithm::ring &&
                                     accumulator_of(rest[0].type) == rest[0].type);
    const size_t count = in_place ? 1 : alike(rest);
    Task reduced;
    if (direct) {
      reduced = all_reduce_direct(attempt, attempt.team, rest[0], op);
    } else if (in_place) {
      reduced = all_reduce_ring(attempt, attempt.team, rest[0], op);
    } else {
      reduced = all_reduce_staged(attempt, rest.first(count), op, choice);
    }
    co_await reduced;
    rest = rest.subspan(count);
  }
}

Tree tree_for(const Attempt& attempt, uint32_t root, const Choice& choice) {
  return choice.algorithm == Algorithm::ring ? chain(attempt.team, root)
                                             : binomial_tree(attempt.team, root);
}

Task reduce(Attempt& attempt, const Call& call, Choice choice) {
  const Staged staged(call.out);
  std::byte* sums = staged.load(attempt.undo);
  const uint32_t root = call.signature.root;
  const Summands summands = {sums, staged.elements, staged.wide, call.signature.op};
  Task reduced;
  if (choice.by_host) {
    reduced = reduce_by_host(attempt, summands, root);
  } else {
    Tree tree = tree_for(attempt, root, choice);
    reduced = reduce_along(attempt, std::move(tree), summands);
  }
  co_await reduced;
  if (attempt.talk.self() == root) {
    staged.store(attempt.undo, sums, call.signature.op, attempt.team.size());
  }
}

Task broadcast(Attempt& attempt, const Call& call, Choice choice) {
  const uint32_t root = call.signature.root;
  if (choice.by_host) return broadcast_by_host(attempt, call.out[0], root);
  return broadcast_along(attempt, tree_for(attempt, root, choice), call.out[0]);
}

bool overlap(const ConstArray& one, const Array& other) {
  const auto* a = static_cast<const std::byte*>(one.data);
  const auto* b = static_cast<const std::byte*>(other.data);
  const bool empty = one.bytes() == 0 || other.bytes() == 0;
  return !empty && a < b + other.bytes() && b < a + one.bytes();
}

Task reduce_scatter(Attempt& attempt, const Call& call, Choice choice) {
  const bool around = choice.algorithm == Algorithm::ring && attempt.team.size() > 1;
  return around
             ? reduce_scatter_ring(attempt, attempt.team, call.in, call.out[0], call.signature.op)
             : reduce_scatter_direct(attempt, attempt.team, call.in, call.out[0],
                                     call.signature.op);
}

Task all_gather(Attempt& attempt, const Call& call, Choice choice) {
  const Array& place = call.out[attempt.talk.self()];
  const bool around = choice.algorithm == Algorithm::ring && attempt.team.size() > 1;
  const bool inside = std::any_of(call.out.begin(), call.out.end(),
                                  [&](const Array& out) { return overlap(call.in[0], out); });
  if (around || inside) copy_array(place, call.in[0]);
  if (around) return all_gather_ring(attempt, attempt.team, call.out);
  return all_gather_direct(attempt, attempt.team, inside ? ConstArray(place) : call.in[0],
                           call.out);
}

Task nothing() {
  co_return;
}

Task move_parts(Attempt& attempt, const Call& call, Choice choice) {
  switch (call.signature.kind) {
    case OperationKind::all_gather:
      return all_gather(attempt, call, choice);
    case OperationKind::gather:
      return gather_direct(attempt, attempt.team, call.in[0], call.out, call.signature.root);
    case OperationKind::scatter:
      return scatter_direct(attempt, attempt.team, call.in, call.out[0], call.signature.root);
    case OperationKind::reduce_scatter:
      return reduce_scatter(attempt, call, choice);
    case OperationKind::all_to_all:
      return all_to_all_direct(attempt, attempt.team, call.in, call.out);
    default:
      throw InternalError("this operation moves no parts");
  }
}

/// Returns whether a gather finds its own part in place, which does not change its input.
bool in_place(const Attempt& attempt, const Call& call, const ConstArray& in, const Array& out) {
  const bool gathers = call.signature.kind == OperationKind::all_gather ||
                       call.signature.kind == OperationKind::gather;
  return gathers && &out == &call.out[attempt.talk.self()] && in.data == out.data;
}

bool changes_an_input(const Attempt& attempt, const Call& call, const Array& out) {
  return std::any_of(call.in.begin(), call.in.end(), [&](const ConstArray& in) {
    return overlap(in, out) && !in_place(attempt, call, in, out);
  });
}

/// Keeps outputs that overlap inputs in work memory until the commit, so that inputs are readable
/// to the end and unchanged if the operation is aborted. `call` is a copy, modified and kept here.
Task move_apart(Attempt& attempt, Call call, Choice choice) {
  std::vector<Array> out = call.out;
  for (size_t part = 0; part < out.size(); ++part) {
    if (!changes_an_input(attempt, call, call.out[part])) continue;
    std::byte* result = attempt.undo.scratch(out[part].bytes());
    attempt.undo.stage(out[part].data, result, out[part].bytes());
    out[part].data = result;
  }
  call.out = std::move(out);
  Task moved = move_parts(attempt, call, choice);
  co_await moved;
}

}  // namespace

bool Call::has_parts(uint32_t self) const {
  switch (signature.kind) {
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
    case OperationKind::all_to_all:
      return true;
    case OperationKind::gather:
    case OperationKind::scatter:
      return signature.root == self;
    default:
      return false;
  }
}

size_t Call::bytes_written() const {
  size_t bytes = 0;
  for (const Array& array : out) bytes += array.bytes();
  return bytes;
}

void Call::clear_places(uint32_t self, const std::vector<uint32_t>& ranks) const {
  const OperationKind kind = signature.kind;
  const bool gathers = kind == OperationKind::all_gather || kind == OperationKind::all_to_all ||
                       (kind == OperationKind::gather && signature.root == self);
  if (!gathers) return;
  for (const uint32_t rank : ranks) {
    if (rank < out.size() && out[rank].bytes() > 0) {
      std::memset(out[rank].data, 0, out[rank].bytes());
    }
  }
}

namespace {

bool lists_inputs(OperationKind kind) {
  return kind == OperationKind::scatter || kind == OperationKind::reduce_scatter ||
         kind == OperationKind::all_to_all;
}
bool lists_results(OperationKind kind) {
  return kind == OperationKind::gather || kind == OperationKind::all_gather ||
         kind == OperationKind::all_to_all;
}
/// Returns a list with one part per rank of `size` ranks, empty except for `ranks`.
template <typename List>
List spread_list(const List& parts, const std::vector<uint32_t>& ranks, size_t size) {
  List places(size);
  for (size_t place = 0; place < ranks.size(); ++place) places[ranks[place]] = parts[place];
  return places;
}

}  // namespace

bool Call::has_parts_for(size_t ranks) const {
  return (!lists_inputs(signature.kind) || in.size() == ranks) &&
         (!lists_results(signature.kind) || out.size() == ranks);
}

bool Call::own_part_fits(uint32_t self) const {
  const size_t given = in[lists_inputs(signature.kind) ? self : 0].elements;
  return out[lists_results(signature.kind) ? self : 0].elements == given;
}

Call Call::spread(const std::vector<uint32_t>& ranks, size_t size) const {
  Call call = *this;
  if (lists_inputs(signature.kind)) call.in = spread_list(in, ranks, size);
  if (lists_results(signature.kind)) call.out = spread_list(out, ranks, size);
  return call;
}

Task perform(Attempt& attempt, const Call& call, const Choice& choice) {
  switch (call.signature.kind) {
    case OperationKind::barrier:
    case OperationKind::monitored_barrier:
      return nothing();
    case OperationKind::all_reduce:
      return all_reduce(attempt, call, choice);
    case OperationKind::reduce:
      return reduce(attempt, call, choice);
    case OperationKind::broadcast:
      return broadcast(attempt, call, choice);
    case OperationKind::all_gather:
    case OperationKind::gather:
    case OperationKind::scatter:
    case OperationKind::reduce_scatter:
    case OperationKind::all_to_all: {
      const bool apart = std::none_of(call.out.begin(), call.out.end(), [&](const Array& out) {
        return changes_an_input(attempt, call, out);
      });
      return apart ? move_parts(attempt, call, choice) : move_apart(attempt, call, choice);
    }
    case OperationKind::close:
      break;  // handled by the queue; see engine/parting.cpp
  }
  throw InternalError("unknown kind of operation");
}

Task commit_round(Attempt& attempt) {
  FrameProtocol& talk = attempt.talk;
  const Team& team = attempt.team;
  for (uint32_t distance = 1; distance < team.size(); distance *= 2) {
    talk.post(team.after(distance), {});
    Receive word = talk.receive(team.before(distance), {});
    co_await word;
  }
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
