#include <algorithm>
#include <cstring>

#include "collectives/algorithms/bytes.hpp"
#include "collectives/algorithms/scattered.hpp"
#include "collectives/engine/streaming_copy.hpp"

namespace tokenyard::collectives {

namespace {

std::span<const std::byte> chunk_of(std::span<const std::byte> part, size_t chunk, size_t index) {
  const size_t begin = std::min(index * chunk, part.size());
  return part.subspan(begin, std::min(chunk, part.size() - begin));
}
std::span<std::byte> chunk_of(std::span<std::byte> part, size_t chunk, size_t index) {
  const size_t begin = std::min(index * chunk, part.size());
  return part.subspan(begin, std::min(chunk, part.size() - begin));
}

void copy(const Attempt& attempt, std::span<std::byte> into, std::span<const std::byte> from) {
  if (attempt.large) {
    copy_streaming(into.data(), from.data(), from.size());
  } else if (!from.empty()) {
    std::memmove(into.data(), from.data(), from.size());
  }
}

}  // namespace

Task all_gather_direct(Attempt& attempt, const Team& team, ConstArray in,
                       std::span<const Array> out) {
  Conversation& talk = attempt.talk;
  const size_t chunk = attempt.chunk_bytes;
  const std::span<const std::byte> own = bytes_of_array(in);
  const std::span<std::byte> own_place = bytes_of_array(out[talk.self()]);
  size_t longest = 0;
  for (const uint32_t rank : team.ranks) longest = std::max(longest, out[rank].bytes());
  // A chunk of this rank's part goes to everybody while it is in the cache, to its own place, too.
  for (size_t index = 0; index == 0 || index * chunk < longest; ++index) {
    const std::span<const std::byte> mine = chunk_of(own, chunk, index);
    for (uint32_t next = 1; next < team.size() && !mine.empty(); ++next) {
      talk.post(team.after(next), mine);
    }
    if (own_place.data() != own.data()) {
      copy(attempt, chunk_of(own_place, chunk, index), mine);
    }
    for (uint32_t back = 1; back < team.size(); ++back) {
      const uint32_t from = team.before(back);
      const std::span<std::byte> theirs = chunk_of(bytes_of_array(out[from]), chunk, index);
      if (theirs.empty()) continue;
      Receive part = talk.receive(from, theirs, attempt.large);
      co_await part;
    }
  }
  Sent sent = talk.sent();
  co_await sent;
}

Task all_gather_ring(Attempt& attempt, const Team& team, std::span<const Array> out) {
  Conversation& talk = attempt.talk;
  const uint32_t left = team.before(1), right = team.after(1);
  const size_t chunk = attempt.chunk_bytes;
  const std::span<std::byte> own = bytes_of_array(out[talk.self()]);
  for (size_t at = 0; at < own.size(); at += chunk) {
    talk.post(right, own.subspan(at, std::min(chunk, own.size() - at)));
  }
  for (uint32_t step = 1; step < team.size(); ++step) {
    const std::span<std::byte> part = bytes_of_array(out[team.before(step)]);
    for (size_t at = 0; at < part.size(); at += chunk) {
      const std::span<std::byte> piece = part.subspan(at, std::min(chunk, part.size() - at));
      Receive incoming = talk.receive(left, piece);
      co_await incoming;
      if (step + 1 < team.size()) talk.post(right, piece);
    }
  }
  Sent sent = talk.sent();
  co_await sent;
}

Task gather_direct(Attempt& attempt, const Team& team, ConstArray in, std::span<const Array> out,
                   uint32_t root) {
  Conversation& talk = attempt.talk;
  if (talk.self() != root) {
    talk.post(root, bytes_of_array(in));
  } else {
    copy_array(out[root], in);
    for (uint32_t next = 1; next < team.size(); ++next) {
      const uint32_t from = team.after(next);
      Receive part = talk.receive(from, bytes_of_array(out[from]), attempt.large);
      co_await part;
    }
  }
  Sent sent = talk.sent();
  co_await sent;
}

Task scatter_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in, Array out,
                    uint32_t root) {
  Conversation& talk = attempt.talk;
  if (talk.self() != root) {
    Receive part = talk.receive(root, bytes_of_array(out), attempt.large);
    co_await part;
    co_return;
  }
  for (uint32_t next = 1; next < team.size(); ++next) {
    talk.post(team.after(next), bytes_of_array(in[team.after(next)]));
  }
  copy_array(out, in[root]);
  Sent sent = talk.sent();
  co_await sent;
}

Task all_to_all_direct(Attempt& attempt, const Team& team, std::span<const ConstArray> in,
                       std::span<const Array> out) {
  Conversation& talk = attempt.talk;
  for (uint32_t next = 1; next < team.size(); ++next) {
    talk.post(team.after(next), bytes_of_array(in[team.after(next)]));
  }
  const std::span<const std::byte> own = bytes_of_array(in[talk.self()]);
  const std::span<std::byte> own_place = bytes_of_array(out[talk.self()]);
  // What stays here is copied as the rest comes in, so that nobody waits for a rank that does that
  // first.
  size_t copied = 0;
  const auto copy_own_up_to = [&](size_t end) {
    if (end <= copied) return;
    if (own.data() != own_place.data()) {
      copy(attempt, own_place.subspan(copied, end - copied), own.subspan(copied, end - copied));
    }
    copied = end;
  };
  for (uint32_t back = 1; back < team.size(); ++back) {
    const uint32_t from = team.before(back);
    const auto own_beside = [&](size_t bytes) {
      copy_own_up_to(std::min(own.size(), copied + bytes));
    };
    auto part = talk.receive_beside(from, bytes_of_array(out[from]), attempt.large, own_beside);
    co_await part;
  }
  copy_own_up_to(own.size());
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
