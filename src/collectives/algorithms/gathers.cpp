#include <algorithm>

#include "collectives/algorithms/bytes.hpp"
#include "collectives/algorithms/scattered.hpp"

namespace tokenyard::collectives {

Task all_gather_direct(Attempt& attempt, const Team& team, std::span<const Array> out) {
  Conversation& talk = attempt.talk;
  for (uint32_t next = 1; next < team.size(); ++next) {
    talk.post(team.after(next), bytes_of_array(out[talk.self()]));
  }
  for (uint32_t back = 1; back < team.size(); ++back) {
    const uint32_t from = team.before(back);
    Receive part = talk.receive(from, bytes_of_array(out[from]), attempt.large);
    co_await part;
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
  copy_array(out[talk.self()], in[talk.self()]);
  for (uint32_t back = 1; back < team.size(); ++back) {
    const uint32_t from = team.before(back);
    Receive part = talk.receive(from, bytes_of_array(out[from]), attempt.large);
    co_await part;
  }
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
