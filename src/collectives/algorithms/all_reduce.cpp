#include "collectives/algorithms/all_reduce.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/algorithms/fold.hpp"

namespace tokenyard::collectives {

Task all_reduce_doubling(Attempt& attempt, const Team& team, Summands summands, std::byte* other,
                         std::byte** result) {
  FrameProtocol& talk = attempt.talk;
  const size_t width = bytes_of(summands.type);
  const size_t bytes = summands.elements * width;
  const Combine combine = combine_of(summands.type, summands.op);
  const Fold fold(team);
  std::byte* mine = summands.data;
  *result = mine;

  if (fold.role == Fold::Role::outside) {
    talk.post(fold.partner, {mine, bytes});
    Receive whole = talk.receive(fold.partner, {other, bytes});
    co_await whole;
    *result = other;
    co_return;
  }
  // Two buffers: one is being sent while the other receives the sum.
  if (fold.role == Fold::Role::inside_for_two) {
    auto lower = talk.receive_each(fold.partner, bytes, width, [=](uint64_t at, auto piece) {
      combine(mine + at, piece.data(), mine + at, piece.size() / width);
    });
    co_await lower;
  }
  for (uint32_t distance = 1; distance < fold.inside; distance *= 2) {
    const uint32_t partner = fold.rank_inside(team, fold.place ^ distance);
    const bool partner_is_lower = (fold.place & distance) != 0;
    talk.post(partner, {mine, bytes});
    auto theirs = talk.receive_each(partner, bytes, width, [=](uint64_t at, auto piece) {
      const void* first = partner_is_lower ? piece.data() : mine + at;
      const void* second = partner_is_lower ? mine + at : piece.data();
      combine(other + at, first, second, piece.size() / width);
    });
    co_await theirs;
    Sent sent = talk.sent();
    co_await sent;
    std::swap(mine, other);
  }
  if (fold.role == Fold::Role::inside_for_two) talk.post(fold.partner, {mine, bytes});
  *result = mine;
  Sent sent = talk.sent();  // the caller may change it next
  co_await sent;
}

Task all_reduce_halving_doubling(Attempt& attempt, const Team& team, Summands summands) {
  FrameProtocol& talk = attempt.talk;
  const size_t width = bytes_of(summands.type);
  const Combine combine = combine_of(summands.type, summands.op);
  const Fold fold(team);
  std::byte* data = summands.data;
  const std::span<std::byte> all(data, summands.elements * width);

  if (fold.role == Fold::Role::outside) {
    talk.post(fold.partner, all);
    Sent sent = talk.sent();  // the result overwrites it
    co_await sent;
    Receive whole = talk.receive(fold.partner, all);
    co_await whole;
    co_return;
  }
  if (fold.role == Fold::Role::inside_for_two) {
    auto lower = talk.receive_each(fold.partner, all.size(), width, [=](uint64_t at, auto piece) {
      combine(data + at, piece.data(), data + at, piece.size() / width);
    });
    co_await lower;
  }
  // Halving: of the sums that both hold, each rank gives one half away and completes the other.
  size_t begin = 0, end = summands.elements;
  for (uint32_t distance = fold.inside / 2; distance > 0; distance /= 2) {
    const uint32_t partner = fold.rank_inside(team, fold.place ^ distance);
    const size_t middle = begin + (end - begin) / 2;
    const bool upper = (fold.place & distance) != 0;
    const size_t give_begin = upper ? begin : middle, give_end = upper ? middle : end;
    (upper ? begin : end) = middle;
    talk.post(partner, {data + give_begin * width, (give_end - give_begin) * width});
    std::byte* keep = data + begin * width;
    auto theirs =
        talk.receive_each(partner, (end - begin) * width, width, [=](uint64_t at, auto piece) {
          combine(keep + at, keep + at, piece.data(), piece.size() / width);
        });
    co_await theirs;
  }
  // Doubling: the same way back. A half that was given away must have been read, since its sum
  // comes back.
  for (uint32_t distance = 1; distance < fold.inside; distance *= 2) {
    const uint32_t partner = fold.rank_inside(team, fold.place ^ distance);
    const Part theirs = fold.range_of(summands.elements, fold.place ^ distance, distance);
    talk.post(partner, {data + begin * width, (end - begin) * width});
    Receive rest = talk.receive(partner, {data + theirs.begin * width, theirs.elements * width});
    co_await rest;
    begin = std::min(begin, theirs.begin);
    end = std::max(end, theirs.begin + theirs.elements);
  }
  if (fold.role == Fold::Role::inside_for_two) talk.post(fold.partner, all);
  Sent sent = talk.sent();  // the caller may change it next
  co_await sent;
}

}  // namespace tokenyard::collectives
