// The array is cut into blocks of N chunks, one per rank. A chunk travels around the ring twice: in
// the first lap each rank adds its part, in the second each rank copies the sum. Blocks are
// pipelined: in each round, a rank takes one step of every block under way, the youngest first. So
// a chunk is passed on while it is in the cache, and no link idles.
//
//     round 0: block 0 step 0
//     round 1: block 1 step 0, block 0 step 1
//     round 2: block 2 step 0, block 1 step 1, block 0 step 2, ...
//
// A rank posts chunks in the order in which its right neighbour receives them.

#include <algorithm>

#include "collectives/algorithms/all_reduce.hpp"

namespace tokenyard::collectives {

Task all_reduce_ring(Attempt& attempt, const Team& team, Array array, ReduceOp op) {
  FrameProtocol& talk = attempt.talk;
  Undo& undo = attempt.undo;
  const uint32_t ranks = team.size(), left = team.before(1), right = team.after(1);
  const size_t width = bytes_of(array.type);
  const Combine combine = combine_of(array.type, op);
  auto* data = static_cast<std::byte*>(array.data);
  const size_t chunk = std::max<size_t>(attempt.chunk_bytes / width, 1);
  const size_t blocks = (array.elements + chunk * ranks - 1) / (chunk * ranks);
  const uint32_t reduce_steps = ranks - 1, steps = 2 * reduce_steps;

  // Returns the part that a rank receives in a step of a block; it sends what its right neighbour
  // receives.
  const auto received = [=](uint32_t place, size_t block, uint32_t step) {
    const Part whole = {0, array.elements};
    const Part in_block = piece_of(whole, chunk * ranks, block);
    const Part part = part_of(in_block.elements, ranks, (place + 2 * ranks - 1 - step) % ranks);
    return Part{in_block.begin + part.begin, part.elements};
  };
  const auto post = [&](size_t block, uint32_t step) {
    const Part part = received((team.me + 1) % ranks, block, step);
    talk.post(right, {data + part.begin * width, part.elements * width});
  };

  if (blocks > 0) post(0, 0);
  for (size_t round = 0; round < blocks + steps - 1; ++round) {
    if (round + 1 < blocks) post(round + 1, 0);
    for (uint32_t step = 0; step < steps; ++step) {
      if (round < step || round - step >= blocks) continue;
      const size_t block = round - step;
      const Part part = received(team.me, block, step);
      std::byte* at = data + part.begin * width;
      const bool reducing = step < reduce_steps;
      const bool first_write = step <= reduce_steps;  // the next step brings this rank's own chunk
      auto incoming = talk.receive_each(
          left, part.elements * width, width, [&, at](uint64_t offset, auto piece) {
            if (first_write) undo.save(at + offset, piece.size());
            if (reducing) {
              combine(at + offset, piece.data(), at + offset, piece.size() / width);
            } else {
              std::copy(piece.begin(), piece.end(), at + offset);
            }
          });
      co_await incoming;
      if (step + 1 == reduce_steps && op == ReduceOp::average) {
        divide(at, array.type, part.elements, ranks);
      }
      if (step + 1 < steps) post(block, step + 1);
    }
  }
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
