// Two ranks that share memory send each other their whole arrays, and both add up everything. As
// many bytes move as if each reduced one half and sent its sums back, but no rank waits for a sum,
// and no sum passes through a ring. Adding everything twice costs nothing beside that.
//
//     post chunk t+1; receive chunk t: of each block save this rank's part, add the other's
//
// A sum overwrites what was posted, so arriving bytes are used only as far as the posted ones in
// their place have been sent.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "collectives/algorithms/all_reduce.hpp"
#include "collectives/algorithms/saving_sum.hpp"
#include "collectives/interfaces/prefetch.hpp"
#include "collectives/interfaces/streaming_copy.hpp"

namespace tokenyard::collectives {

namespace {

/// Block sizes. A block that is saved, added to and perhaps divided within the innermost cache is
/// read from memory once. If it is first saved and then added, shorter is better: loads of one step
/// overlap with stores of the other. Multiples of every element size.
constexpr size_t turn_bytes = size_t{1} << 10, saving_turn_bytes = size_t{8} << 10;

/// Replaces this rank's array by the sums of both ranks'. Both put the same rank's part first, and
/// compute each element in the same way however arriving bytes are cut into pieces: compilers may
/// exchange operands, and of two NaNs the first one survives.
struct PairSum {
  DataType type;
  ReduceOp op;
  bool mine_is_first;
  size_t ahead;          ///< distance in bytes to what this rank sends next
  std::byte* wide_sums;  ///< memory for one block, if sums are rounded at the end
  size_t width = bytes_of(type);
  Combine combine = combine_of(type, op), accumulate = accumulate_of(type, op);
  SavingSum saving_sum = saving_sum_of(type, op);

  void reduce(std::byte* saved, std::byte* mine, std::span<const std::byte> theirs) const {
    const size_t most = saving_sum != nullptr ? saving_turn_bytes : turn_bytes;
    size_t bytes = 0;
    for (size_t at = 0; at < theirs.size(); at += bytes) {
      const size_t to_line = (0 - reinterpret_cast<uintptr_t>(saved + at)) % saving_line_bytes;
      bytes = std::min(most, theirs.size() - at);
      if (saving_sum == nullptr) {
        in_steps(saved + at, mine + at, theirs.data() + at, bytes);
      } else if (to_line == 0 && bytes >= saving_line_bytes) {
        bytes -= bytes % saving_line_bytes;
        in_lines(saved + at, mine + at, theirs.data() + at, bytes);
      } else {
        bytes = std::min(bytes, to_line % width == 0 && to_line > 0 ? to_line : saving_line_bytes);
        within_a_line(saved + at, mine + at, theirs.data() + at, bytes);
      }
    }
  }

 private:
  void in_lines(std::byte* saved, std::byte* mine, const std::byte* theirs, size_t bytes) const {
    if (mine_is_first) {
      saving_sum(saved, mine, mine, theirs, bytes, ahead);
    } else {
      saving_sum(saved, mine, theirs, mine, bytes, ahead);
    }
    if (op == ReduceOp::average) divide(mine, type, bytes / width, 2);
  }
  void within_a_line(std::byte* saved, std::byte* mine, const std::byte* theirs,
                     size_t bytes) const {
    struct alignas(saving_line_bytes) Line {
      std::byte bytes[saving_line_bytes] = {};
    } old, sum, other;
    std::memcpy(sum.bytes, mine, bytes);
    std::memcpy(other.bytes, theirs, bytes);
    in_lines(old.bytes, sum.bytes, other.bytes, saving_line_bytes);
    std::memcpy(saved, old.bytes, bytes);
    std::memcpy(mine, sum.bytes, bytes);
  }
  void in_steps(std::byte* saved, std::byte* mine, const std::byte* theirs, size_t bytes) const {
    const std::byte* const first = mine_is_first ? mine : theirs;
    const std::byte* const second = mine_is_first ? theirs : mine;
    const size_t elements = bytes / width;
    prefetch_outer(mine + ahead, bytes);
    copy_streaming(saved, mine, bytes);
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
  FrameProtocol& talk = attempt.talk;
  Undo& undo = attempt.undo;
  const uint32_t other = team.after(1);
  const size_t width = bytes_of(array.type);
  const DataType wide = accumulator_of(array.type);
  auto* const data = static_cast<std::byte*>(array.data);
  // At least four chunks, so that one rank adds while the other still sends, but no tiny ones.
  const size_t few = std::max<size_t>(array.elements / 4, (size_t{16} << 10) / width);
  const size_t chunk = std::max<size_t>(std::min(attempt.chunk_bytes / width, few), 1);
  const size_t chunks = (array.elements + chunk - 1) / chunk;
  std::byte* const wide_sums =
      wide == array.type ? nullptr : undo.scratch(turn_bytes / width * bytes_of(wide));
  const PairSum sums = {.type = array.type,
                        .op = op,
                        .mine_is_first = team.me == 0,
                        .ahead = 2 * chunk * width,
                        .wide_sums = wide_sums};

  const auto chunk_of = [=](size_t index) {
    const Part part = piece_of({0, array.elements}, chunk, index);
    return std::span<std::byte>(data + part.begin * width, part.elements * width);
  };
  uint64_t frames[2] = {0, 0};  // the two posted last
  const auto post = [&](size_t index) {
    frames[index % 2] = talk.posted(other);
    talk.post(other, chunk_of(index));
  };

  if (chunks > 0) post(0);
  for (size_t index = 0; index < chunks; ++index) {
    if (index + 1 < chunks) post(index + 1);
    const std::span<std::byte> mine = chunk_of(index);
    auto theirs = talk.receive_in_exchange(
        other, frames[index % 2], mine.size(), width, [&, mine](uint64_t at, auto piece) {
          std::byte* const place = mine.data() + at;
          sums.reduce(undo.place_to_save(place, piece.size()), place, piece);
        });
    co_await theirs;
  }
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
