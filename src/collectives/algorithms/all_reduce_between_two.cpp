// Two ranks that share memory send one another all they have, and both add up all of it. As many
// bytes move as if each had reduced a half and sent its sums back, but no sum is waited for, and
// none goes into a ring and out of it again. To add twice costs nothing beside that.
//
//     post chunk t+1; receive chunk t: of each block save this rank's part, add the other's
//
// A sum goes where what was posted lies, so what arrives is used only as far as that is out.

#include <algorithm>

#include "collectives/algorithms/all_reduce.hpp"
#include "collectives/engine/streaming_copy.hpp"
#include "collectives/wire/prefetch.hpp"

namespace tokenyard::collectives {

namespace {

/// What is saved and what is added come from different places; in turns as short as this one's
/// loads are under way while the other's stores drain. A whole number of elements of any type.
constexpr size_t block_bytes = size_t{1} << 10;

/// The sum of a block, in place of this rank's part. Both ranks put the same one's part first.
struct BlockSum {
  DataType type;
  ReduceOp op;
  bool mine_is_first;
  std::byte* wide_sums;  ///< room for a block, where sums are rounded at their end
  Combine combine = combine_of(type, op), accumulate = accumulate_of(type, op);

  void operator()(std::byte* mine, const std::byte* theirs, size_t elements) const {
    const std::byte* const first = mine_is_first ? mine : theirs;
    const std::byte* const second = mine_is_first ? theirs : mine;
    if (wide_sums == nullptr) {
      combine(mine, first, second, elements);
      if (op == ReduceOp::average) divide(mine, type, elements, 2);
      return;
    }
    widen(wide_sums, first, type, elements);
    accumulate(wide_sums, wide_sums, second, elements);
    if (op == ReduceOp::average) divide(wide_sums, accumulator_of(type), elements, 2);
    narrow(mine, wide_sums, type, elements);
  }
};

}  // namespace

Task all_reduce_between_two(Attempt& attempt, const Team& team, Array array, ReduceOp op) {
  Conversation& talk = attempt.talk;
  Undo& undo = attempt.undo;
  const uint32_t other = team.after(1);
  const size_t width = bytes_of(array.type);
  const DataType wide = accumulator_of(array.type);
  auto* const data = static_cast<std::byte*>(array.data);
  // At least four chunks, so that one rank adds while the other still sends, but none too small.
  const size_t few = std::max<size_t>(array.elements / 4, (size_t{16} << 10) / width);
  const size_t chunk = std::max<size_t>(std::min(attempt.chunk_bytes / width, few), 1);
  const size_t chunks = (array.elements + chunk - 1) / chunk;
  const size_t ahead = 2 * chunk * width;  // to the chunk that is posted when this one is done
  std::byte* const wide_sums =
      wide == array.type ? nullptr : undo.scratch(block_bytes / width * bytes_of(wide));
  const BlockSum sum = {
      .type = array.type, .op = op, .mine_is_first = team.me == 0, .wide_sums = wide_sums};

  const auto reduce = [&](std::byte* mine, std::span<const std::byte> theirs) {
    std::byte* const saved = undo.place_to_save(mine, theirs.size());
    for (size_t at = 0; at < theirs.size(); at += block_bytes) {
      const size_t bytes = std::min(block_bytes, theirs.size() - at);
      prefetch_outer(mine + at + ahead, bytes);
      if (saved != nullptr) copy_streaming(saved + at, mine + at, bytes);
      sum(mine + at, theirs.data() + at, bytes / width);
    }
  };
  const auto chunk_of = [=](size_t index) {
    const Part part = piece_of({0, array.elements}, chunk, index);
    return std::span<std::byte>(data + part.begin * width, part.elements * width);
  };
  uint64_t frames[2] = {0, 0};  // the last two that were posted
  const auto post = [&](size_t index) {
    frames[index % 2] = talk.posted(other);
    talk.post(other, chunk_of(index));
  };

  if (chunks > 0) post(0);
  for (size_t index = 0; index < chunks; ++index) {
    if (index + 1 < chunks) post(index + 1);
    const std::span<std::byte> mine = chunk_of(index);
    auto theirs = talk.receive_in_exchange(
        other, frames[index % 2], mine.size(), width,
        [&, mine](uint64_t at, auto piece) { reduce(mine.data() + at, piece); });
    co_await theirs;
  }
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
