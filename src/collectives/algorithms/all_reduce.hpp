/// all_reduce among a team of N ranks. Bytes are what a rank sends, of an array of B bytes.
///
///                      steps               bytes               where
///     doubling         log2 N              B log2 N            small
///     halving_doubling 2 log2 N            2 B (N-1)/N         N a power of two
///     ring             2 (N-1), pipelined  2 B (N-1)/N         many ranks, large
///     direct           2, pipelined        2 B (N-1)/N         within a host
///     between two      1, pipelined        B                   two of a host
///
/// All ranks end with the same bits: each element is either reduced by one rank and copied, or by
/// all in the same order.
#pragma once

#include "collectives/algorithms/reduce.hpp"
#include "collectives/interfaces/array.hpp"
#include "collectives/interfaces/attempt.hpp"

namespace tokenyard::collectives {

/// Elements of `type` that are combined, without averaging, and without care for undoing.
struct Summands {
  std::byte* data;
  size_t elements;
  DataType type;
  ReduceOp op;
};

/// Where the number of ranks is no power of two, some ranks hand theirs to a neighbour first and
/// get the result last. `other` is room for as many bytes; the result is in the one that is
/// returned through `result`.
Task all_reduce_doubling(Attempt& attempt, const Team& team, Summands summands, std::byte* other,
                         std::byte** result);
Task all_reduce_halving_doubling(Attempt& attempt, const Team& team, Summands summands);

/// In place, saving what it replaces; averages. The array's type is its accumulator's.
Task all_reduce_ring(Attempt& attempt, const Team& team, Array array, ReduceOp op);
/// In place, saving what it replaces; averages. Of all types: short floats are rounded once. Pieces
/// are reduced where they lie in the ring, and go on their way while they are in the cache.
Task all_reduce_direct(Attempt& attempt, const Team& team, Array array, ReduceOp op);
/// What `direct` is between two of a host: each sends the other all it has, and adds up all of it.
Task all_reduce_between_two(Attempt& attempt, const Team& team, Array array, ReduceOp op);

}  // namespace tokenyard::collectives
