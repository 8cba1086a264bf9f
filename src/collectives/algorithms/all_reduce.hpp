/// all_reduce among a team of N ranks. The bytes are those that each rank sends of an array of B
/// bytes.
///
///                      steps               bytes               used
///     doubling         log2 N              B log2 N            small arrays
///     halving_doubling 2 log2 N            2 B (N-1)/N         N a power of two
///     ring             2 (N-1), pipelined  2 B (N-1)/N         many ranks, large arrays
///     direct           2, pipelined        2 B (N-1)/N         within a host
///     between two      1, pipelined        B                   two ranks of a host
///
/// Invariant: all ranks get the same bits. Each element is reduced by one rank and copied, or by
/// all ranks in the same order.
#pragma once

#include "collectives/algorithms/reduce.hpp"
#include "collectives/interfaces/array.hpp"
#include "collectives/interfaces/attempt.hpp"

namespace tokenyard::collectives {

/// Elements of `type` to combine, without averaging and without undo.
struct Summands {
  std::byte* data;
  size_t elements;
  DataType type;
  ReduceOp op;
};

/// If the number of ranks is no power of two, some ranks first hand their part to a neighbour and
/// get the result last. `other` is memory of the same size; `*result` is set to whichever of the
/// two holds the result.
Task all_reduce_doubling(Attempt& attempt, const Team& team, Summands summands, std::byte* other,
                         std::byte** result);
Task all_reduce_halving_doubling(Attempt& attempt, const Team& team, Summands summands);

/// In place, saving what it overwrites; averages. Only for types that are their own accumulator.
Task all_reduce_ring(Attempt& attempt, const Team& team, Array array, ReduceOp op);
/// In place, saving what it overwrites; averages. For all types; short floats are rounded once.
/// Pieces are reduced in the ring's memory and passed on while they are in the cache.
Task all_reduce_direct(Attempt& attempt, const Team& team, Array array, ReduceOp op);
/// `direct` between two ranks of a host: each sends its whole array, and both add up everything.
Task all_reduce_between_two(Attempt& attempt, const Team& team, Array array, ReduceOp op);

}  // namespace tokenyard::collectives
