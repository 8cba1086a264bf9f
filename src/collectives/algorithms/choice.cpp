#include "collectives/algorithms/choice.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/algorithms/reduce.hpp"

namespace tokenyard::collectives {

namespace {

constexpr size_t medium = size_t{1} << 20;

Choice for_all_reduce(DataType type, size_t bytes, const Shape& shape, Algorithm wanted) {
  const bool spread = shape.hosts > 1 && shape.hosts < shape.ranks;
  const bool short_float = accumulator_of(type) != type;
  switch (wanted) {
    case Algorithm::doubling:
    case Algorithm::halving_doubling:
    case Algorithm::ring:
    case Algorithm::direct:
      return {wanted, false, "as asked"};
    case Algorithm::tree:
      return {wanted, true, "as asked"};
    case Algorithm::automatic:
      break;
  }
  if (spread && bytes <= medium) return {Algorithm::tree, true, "<= 1 MiB over hosts with several"};
  if (shape.hosts > 1 && bytes <= staged_bytes_max) {
    return {Algorithm::doubling, false, "<= 64 KiB between hosts"};
  }
  if (bytes <= (size_t{16} << 10)) return {Algorithm::doubling, false, "<= 16 KiB within a host"};
  if (shape.hosts == 1) return {Algorithm::direct, false, "> 16 KiB within a host"};
  if (shape.ranks == 2) return {Algorithm::direct, false, "> 64 KiB between two"};
  if (short_float) return {Algorithm::direct, false, "short floats are rounded once"};
  if (bytes <= medium) return {Algorithm::halving_doubling, false, "<= 1 MiB between hosts"};
  return {Algorithm::ring, false, "> 1 MiB between hosts"};
}

Choice for_rooted(size_t bytes, const Shape& shape, Algorithm wanted) {
  if (wanted == Algorithm::tree || wanted == Algorithm::ring) return {wanted, false, "as asked"};
  if (shape.ranks <= 2) return {Algorithm::tree, false, "of two"};
  if (shape.hosts > 1 && shape.hosts < shape.ranks && bytes <= medium) {
    return {Algorithm::tree, true, "<= 1 MiB over hosts with several"};
  }
  if (bytes <= staged_bytes_max) return {Algorithm::tree, false, "<= 64 KiB"};
  return {Algorithm::ring, false, "> 64 KiB: a chain of pieces"};
}

Choice for_scattered(OperationKind kind, DataType type, size_t bytes, const Shape& shape,
                     Algorithm wanted) {
  const bool rounding = kind == OperationKind::reduce_scatter && accumulator_of(type) != type;
  if (wanted == Algorithm::ring && rounding) {
    return {Algorithm::direct, false, "short floats are rounded once"};
  }
  if (wanted == Algorithm::ring || wanted == Algorithm::direct) return {wanted, false, "as asked"};
  if (shape.hosts > 1 && shape.ranks > 2 && bytes > medium && !rounding) {
    return {Algorithm::ring, false, "> 1 MiB between hosts"};
  }
  return {Algorithm::direct, false, shape.hosts == 1 ? "within a host" : "few or small"};
}

}  // namespace

Shape shape_of(const Team& team, const std::vector<uint32_t>& host_of) {
  Shape shape = {.ranks = team.size(), .hosts = 0};
  for (uint32_t place = 0; place < team.size(); ++place) {
    // Ranks of a host are adjacent.
    const bool new_host =
        place == 0 || host_of[team.ranks[place]] != host_of[team.ranks[place - 1]];
    shape.hosts += new_host ? 1 : 0;
  }
  return shape;
}

std::string Choice::text(size_t bytes, const Shape& shape) const {
  return fmt::format("{}{}: {} bytes, {} ranks on {} host{} ({})", tokenyard::name_of(algorithm),
                     by_host ? " by host" : "", bytes, shape.ranks, shape.hosts,
                     shape.hosts == 1 ? "" : "s", rule);
}

Choice choose(OperationKind kind, DataType type, size_t bytes, const Shape& shape,
              Algorithm wanted) {
  Choice choice = {Algorithm::direct, false, "the only way"};
  switch (kind) {
    case OperationKind::all_reduce:
      choice = for_all_reduce(type, bytes, shape, wanted);
      break;
    case OperationKind::reduce:
    case OperationKind::broadcast:
      choice = for_rooted(bytes, shape, wanted);
      break;
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
      choice = for_scattered(kind, type, bytes, shape, wanted);
      break;
    case OperationKind::barrier:
    case OperationKind::monitored_barrier:
      choice = {Algorithm::doubling, false, "no data"};
      break;
    case OperationKind::gather:
    case OperationKind::scatter:
    case OperationKind::all_to_all:
    case OperationKind::close:
      break;
  }
  if (wanted == Algorithm::automatic || choice.algorithm == wanted) return choice;
  if (std::string_view(choice.rule) == "short floats are rounded once") return choice;
  throw InvalidArgument("algorithm", "an algorithm that " + name_of(kind) + " has",
                        tokenyard::name_of(wanted));
}

}  // namespace tokenyard::collectives
