#include <algorithm>
#include <cstring>

#include "collectives/algorithms/bytes.hpp"
#include "collectives/algorithms/scattered.hpp"
#include "collectives/interfaces/streaming_copy.hpp"

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

/// This rank's own part, copied piece by piece while the others' parts arrive, so that they need
/// not wait until it is copied.
class OwnPart {
 public:
  OwnPart(std::span<std::byte> place, std::span<const std::byte> part, bool streaming)
      : place_(place), part_(part), streaming_(streaming) {}

  void copy(size_t bytes) { copy_up_to(copied_ + bytes); }
  void copy_up_to(size_t end) {
    end = std::min(end, part_.size());
    if (end <= copied_) return;
    if (place_.data() != part_.data()) copy_piece(end - copied_);
    copied_ = end;
  }
  void copy_rest() { copy_up_to(part_.size()); }

 private:
  void copy_piece(size_t bytes) {
    std::byte* into = place_.data() + copied_;
    const std::byte* from = part_.data() + copied_;
    if (streaming_) {
      copy_streaming(into, from, bytes);
    } else {
      std::memmove(into, from, bytes);
    }
  }

  std::span<std::byte> place_;
  std::span<const std::byte> part_;
  bool streaming_;
  size_t copied_ = 0;
};

}  // namespace

Task all_gather_direct(Attempt& attempt, const Team& team, ConstArray in,
                       std::span<const Array> out) {
  FrameProtocol& talk = attempt.talk;
  const std::span<const std::byte> own = bytes_of_array(in);
  OwnPart kept(bytes_of_array(out[talk.self()]), own, attempt.large);
  size_t longest = 0;
  for (const uint32_t rank : team.ranks) longest = std::max(longest, out[rank].bytes());
  // A chunk of this rank's part goes to all ranks, and to its own place, while it is in the cache.
  // Between two ranks a part is one frame, since over TCP each frame's header costs a packet.
  const size_t chunk = team.size() > 2 ? attempt.chunk_bytes : longest;
  for (size_t index = 0; index == 0 || index * chunk < longest; ++index) {
    const std::span<const std::byte> mine = chunk_of(own, chunk, index);
    for (uint32_t next = 1; next < team.size() && !mine.empty(); ++next) {
      talk.post(team.after(next), mine);
    }
    for (uint32_t back = 1; back < team.size(); ++back) {
      const uint32_t from = team.before(back);
      const std::span<std::byte> theirs = chunk_of(bytes_of_array(out[from]), chunk, index);
      if (theirs.empty()) continue;
      auto part =
          talk.receive_beside(from, theirs, attempt.large, [&](size_t bytes) { kept.copy(bytes); });
      co_await part;
    }
    kept.copy_up_to((index + 1) * chunk);
  }
  Sent sent = talk.sent();
  co_await sent;
}

Task all_gather_ring(Attempt& attempt, const Team& team, std::span<const Array> out) {
  FrameProtocol& talk = attempt.talk;
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
  FrameProtocol& talk = attempt.talk;
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
  FrameProtocol& talk = attempt.talk;
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
  FrameProtocol& talk = attempt.talk;
  for (uint32_t next = 1; next < team.size(); ++next) {
    talk.post(team.after(next), bytes_of_array(in[team.after(next)]));
  }
  OwnPart kept(bytes_of_array(out[talk.self()]), bytes_of_array(in[talk.self()]), attempt.large);
  for (uint32_t back = 1; back < team.size(); ++back) {
    const uint32_t from = team.before(back);
    auto part = talk.receive_beside(from, bytes_of_array(out[from]), attempt.large,
                                    [&](size_t bytes) { kept.copy(bytes); });
    co_await part;
  }
  kept.copy_rest();
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
