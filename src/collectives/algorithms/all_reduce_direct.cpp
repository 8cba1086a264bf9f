// Each rank reduces one part of the array: all others send it theirs and get its sum back. Parts
// move in chunks, and a sum is sent as soon as it is complete:
//
//     post chunk t+1 to the ranks that reduce it;
//     receive chunk t of all ranks, reduce it, post the sum;
//     receive the others' sums of chunk t-1
//
// So a chunk stays in the cache from the arrival of its first byte until it is passed on.

#include <algorithm>
#include <cstring>

#include "collectives/algorithms/all_reduce.hpp"

namespace tokenyard::collectives {

namespace {

/// The sum of a chunk of this rank's part: in the array itself or, for short floats, beside it.
struct ChunkSum {
  DataType type;
  ReduceOp op;
  uint32_t ranks;
  Combine accumulate = accumulate_of(type, op);
  bool beside = accumulator_of(type) != type;
  size_t wide = bytes_of(accumulator_of(type)), narrow_width = bytes_of(type);
  std::byte* wide_sums = nullptr;

  void begin(const std::byte* own, size_t elements) const {
    if (beside) widen(wide_sums, own, type, elements);
  }
  void add(std::byte* own, size_t element, std::span<const std::byte> piece) const {
    std::byte* sum = beside ? wide_sums + element * wide : own + element * narrow_width;
    accumulate(sum, sum, piece.data(), piece.size() / narrow_width);
  }
  void finish(std::byte* own, size_t elements) const {
    std::byte* sum = beside ? wide_sums : own;
    if (op == ReduceOp::average) divide(sum, accumulator_of(type), elements, ranks);
    if (beside) narrow(own, sum, type, elements);
  }
};

/// A block that is saved and then overwritten within the innermost cache is read from memory once.
/// A multiple of every element size.
constexpr size_t block_bytes = size_t{8} << 10;

template <typename Body>
void for_each_block(uint64_t at, std::span<const std::byte> piece, Body body) {
  for (size_t done = 0; done < piece.size(); done += block_bytes) {
    body(at + done, piece.subspan(done, std::min(block_bytes, piece.size() - done)));
  }
}

}  // namespace

Task all_reduce_direct(Attempt& attempt, const Team& team, Array array, ReduceOp op) {
  const std::vector<uint32_t>& host_of = attempt.host_of;
  if (team.size() == 2 && host_of[team.ranks[0]] == host_of[team.ranks[1]]) {
    Task between_two = all_reduce_between_two(attempt, team, array, op);
    co_await between_two;
    co_return;
  }
  FrameProtocol& talk = attempt.talk;
  Undo& undo = attempt.undo;
  const uint32_t ranks = team.size();
  const size_t width = bytes_of(array.type);
  auto* data = static_cast<std::byte*>(array.data);
  const size_t longest = part_of(array.elements, ranks, 0).elements;
  // At least four chunks, so that sums return while parts still arrive, but no tiny ones.
  const size_t few = std::max<size_t>(longest / 4, (size_t{16} << 10) / width);
  const size_t chunk = std::max<size_t>(std::min(attempt.chunk_bytes / width, few), 1);
  const size_t chunks = (longest + chunk - 1) / chunk;
  ChunkSum sum = {.type = array.type, .op = op, .ranks = ranks};
  if (sum.beside) sum.wide_sums = attempt.undo.scratch(std::min(chunk, longest) * sum.wide);

  const auto chunk_of = [=](uint32_t place, size_t index) {
    const Part part = piece_of(part_of(array.elements, ranks, place), chunk, index);
    return std::span<std::byte>(data + part.begin * width, part.elements * width);
  };
  const auto post_to_reducers = [&](size_t index) {
    for (uint32_t next = 1; next < ranks; ++next) {
      const std::span<std::byte> theirs = chunk_of((team.me + next) % ranks, index);
      if (!theirs.empty()) talk.post(team.after(next), theirs);
    }
  };

  if (chunks > 0) post_to_reducers(0);
  for (size_t round = 0; round <= chunks; ++round) {
    if (round + 1 < chunks) post_to_reducers(round + 1);
    const std::span<std::byte> mine =
        round < chunks ? chunk_of(team.me, round) : std::span<std::byte>();
    if (!mine.empty()) {
      sum.begin(mine.data(), mine.size() / width);
      bool saved = false;
      for (uint32_t place = 0; place < ranks; ++place) {
        if (place == team.me) continue;
        auto theirs = talk.receive_each(
            team.ranks[place], mine.size(), width, [&, saved](uint64_t at, auto piece) {
              for_each_block(at, piece, [&](uint64_t begin, auto block) {
                if (!saved) undo.save(mine.data() + begin, block.size());
                sum.add(mine.data(), begin / width, block);
              });
            });
        co_await theirs;
        saved = true;
      }
      sum.finish(mine.data(), mine.size() / width);
      for (uint32_t next = 1; next < ranks; ++next) talk.post(team.after(next), mine);
    }
    for (uint32_t back = 1; round > 0 && back < ranks; ++back) {
      const std::span<std::byte> theirs = chunk_of((team.me + ranks - back) % ranks, round - 1);
      if (theirs.empty()) continue;
      auto sums = talk.receive_each(
          team.before(back), theirs.size(), width, [&, theirs](uint64_t at, auto piece) {
            for_each_block(at, piece, [&](uint64_t begin, auto block) {
              undo.save(theirs.data() + begin, block.size());
              std::memcpy(theirs.data() + begin, block.data(), block.size());
            });
          });
      co_await sums;
    }
  }
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
