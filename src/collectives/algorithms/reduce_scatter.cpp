#include <algorithm>

#include "collectives/algorithms/bytes.hpp"
#include "collectives/algorithms/scattered.hpp"
#include "collectives/interfaces/streaming_copy.hpp"

namespace tokenyard::collectives {

Task reduce_scatter_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                           Array out, ReduceOp op) {
  FrameProtocol& talk = attempt.talk;
  const uint32_t ranks = team.size();
  const DataType wide = accumulator_of(out.type);
  const size_t width = bytes_of(out.type), wide_width = bytes_of(wide);
  const Combine accumulate = accumulate_of(out.type, op);
  const size_t chunk = std::max<size_t>(attempt.chunk_bytes / width, 1);
  const auto* own = static_cast<const std::byte*>(in[attempt.talk.self()].data);
  auto* result = static_cast<std::byte*>(out.data);
  const bool rounds = wide != out.type;
  // Large results bypass the caches; the sums they come from stay in them.
  const bool beside = rounds || attempt.large;
  std::byte* sums =
      beside ? attempt.undo.scratch(std::min(chunk, out.elements) * wide_width) : nullptr;

  // Chunk by chunk, so that no rank's ring fills up while another's is read.
  const auto post_chunks = [&](size_t index) {
    for (uint32_t next = 1; next < ranks; ++next) {
      const ConstArray& theirs = in[team.after(next)];
      const Part part = piece_of({0, theirs.elements}, chunk, index);
      if (part.elements == 0) continue;
      talk.post(team.after(next),
                bytes_of_array(theirs).subspan(part.begin * width, part.elements * width));
    }
  };
  size_t chunks = 0;
  for (const uint32_t rank : team.ranks) {
    chunks = std::max(chunks, (in[rank].elements + chunk - 1) / chunk);
  }
  if (chunks > 0) post_chunks(0);
  for (size_t index = 0; index < chunks; ++index) {
    if (index + 1 < chunks) post_chunks(index + 1);
    const Part part = piece_of({0, out.elements}, chunk, index);
    if (part.elements == 0) continue;
    std::byte* into = beside ? sums : result + part.begin * width;
    const std::byte* from = own + part.begin * width;
    if (rounds || ranks == 1) widen(into, from, out.type, part.elements);
    bool first = !rounds;
    for (uint32_t place = 0; place < ranks; ++place) {
      if (place == team.me) continue;
      auto theirs = talk.receive_each(
          team.ranks[place], part.elements * width, width, [=](uint64_t at, auto piece) {
            const size_t element = at / width;
            const void* before = first ? from + at : into + element * wide_width;
            accumulate(into + element * wide_width, before, piece.data(), piece.size() / width);
          });
      co_await theirs;
      first = false;
    }
    if (op == ReduceOp::average) divide(into, wide, part.elements, ranks);
    std::byte* const place = result + part.begin * width;
    if (rounds) {
      narrow(place, into, out.type, part.elements);
    } else if (beside) {
      copy_streaming(place, into, part.elements * width);
    }
  }
  Sent sent = talk.sent();
  co_await sent;
}

Task reduce_scatter_ring(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                         Array out, ReduceOp op) {
  FrameProtocol& talk = attempt.talk;
  const uint32_t ranks = team.size(), left = team.before(1), right = team.after(1);
  const size_t width = bytes_of(out.type);
  const Combine combine = combine_of(out.type, op);
  const size_t chunk = std::max<size_t>(attempt.chunk_bytes / width, 1);
  size_t scratch_elements = 0;
  for (const uint32_t rank : team.ranks) {
    scratch_elements = std::max(scratch_elements, in[rank].elements);
  }
  // Two buffers for sums passing through this rank, since one may still be being sent.
  std::byte* passing[2] = {attempt.undo.scratch(scratch_elements * width),
                           attempt.undo.scratch(scratch_elements * width)};
  uint64_t posted[2] = {0, 0};  // number of frames posted to the right, when each was last posted

  const ConstArray& first = in[left];
  for (size_t at = 0; at < first.elements; at += chunk) {
    const size_t elements = std::min(chunk, first.elements - at);
    talk.post(right, bytes_of_array(first).subspan(at * width, elements * width));
  }
  for (uint32_t step = 0; step + 1 < ranks; ++step) {
    const ConstArray& own = in[team.before(step + 2)];
    const bool last = step + 2 == ranks;
    if (step >= 2) {
      // Waits until the buffer's old content has been sent. The right neighbour took it before it
      // went on to this step; later frames it may take only in this step, and waiting for all of
      // those here would be a circular wait.
      SentUntil sent = talk.sent_until(right, posted[step % 2]);
      co_await sent;
    }
    std::byte* into = last ? static_cast<std::byte*>(out.data) : passing[step % 2];
    const auto* mine = static_cast<const std::byte*>(own.data);
    for (size_t at = 0; at < own.elements; at += chunk) {
      const size_t elements = std::min(chunk, own.elements - at);
      const size_t base = at * width;
      auto sums = talk.receive_each(left, elements * width, width, [=](uint64_t off, auto piece) {
        combine(into + base + off, piece.data(), mine + base + off, piece.size() / width);
      });
      co_await sums;
      if (!last) talk.post(right, {into + base, elements * width});
    }
    posted[step % 2] = talk.posted(right);
  }
  if (op == ReduceOp::average) divide(out.data, out.type, out.elements, ranks);
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
