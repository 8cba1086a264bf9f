#include "fabric/proxy/peer_receiver.hpp"

#include <algorithm>
#include <cstring>

#include "net/protocol_error.hpp"

namespace tokenyard {

PeerReceiver::PeerReceiver(const Options& options, const RegisteredRegions& regions,
                           ReceiverListener& listener)
    : options_(options),
      regions_(regions),
      listener_(listener),
      paths_(options.paths),
      landed_(options.queues),
      ended_(options.queues),
      nowhere_(size_t{64} << 10) {
  for (Path& path : paths_) path.buffer.resize(kBufferBytes);
}

std::array<std::span<std::byte>, 2> PeerReceiver::room(uint32_t number) {
  Path& path = paths_[number];
  if (path.waits) return {};
  std::span<std::byte> buffer = std::span(path.buffer).subspan(path.end);
  if (path.left == 0) return {buffer, std::span<std::byte>()};
  if (path.target == nullptr)
    return {std::span(nowhere_).first(std::min(path.left, nowhere_.size())),
            std::span<std::byte>()};
  // Behind a long payload only a header is read ahead, so that the next payload, too, arrives in
  // its target.
  if (path.left > kBufferBytes) buffer = buffer.first(kPutFrameBytes);
  return {std::span(path.target, path.left), buffer};
}

void PeerReceiver::received(uint32_t number, size_t bytes) {
  Path& path = paths_[number];
  const size_t payload = std::min(bytes, path.left);
  if (payload != 0) {
    take_payload(path, payload);
    if (path.left == 0) landed(number);
  }
  path.end += bytes - payload;
  parse(number);
}

void PeerReceiver::take_payload(Path& path, size_t bytes) {
  if (path.target != nullptr) path.target += bytes;
  path.left -= bytes;
}

void PeerReceiver::parse(uint32_t number) {
  Path& path = paths_[number];
  for (;;) {
    if (path.waits && take_effect(path.frame)) path.waits = false;
    if (path.waits) break;
    const size_t there = path.end - path.begin;
    if (path.left != 0) {
      const size_t bytes = std::min(there, path.left);
      if (bytes == 0) break;
      if (path.target != nullptr) std::memcpy(path.target, path.buffer.data() + path.begin, bytes);
      path.begin += bytes;
      take_payload(path, bytes);
      if (path.left == 0) landed(number);
      continue;
    }
    if (there < kPutFrameBytes) break;
    path.frame = decode_put_frame(std::span<const std::byte, kPutFrameBytes>(
        path.buffer.data() + path.begin, kPutFrameBytes));
    path.begin += kPutFrameBytes;
    take_frame(number);
  }
  if (path.waits) return;  // `room` is empty until it goes on.
  std::copy(path.buffer.begin() + static_cast<ptrdiff_t>(path.begin),
            path.buffer.begin() + static_cast<ptrdiff_t>(path.end), path.buffer.begin());
  path.end -= path.begin;
  path.begin = 0;
}

void PeerReceiver::take_frame(uint32_t number) {
  Path& path = paths_[number];
  const PutFrame& frame = path.frame;
  if (frame.sequence != path.sequence++)
    throw net::ProtocolError("sent a frame out of its sequence");
  if (frame.epoch != options_.epoch) throw net::ProtocolError("sent a frame of another epoch");
  if (frame.queue >= options_.queues)
    throw net::ProtocolError("sent a frame of a queue that does not exist");
  if (frame.origin != 0 && (!options_.acknowledged || frame.origin > options_.paths))
    throw net::ProtocolError("sent a frame again that cannot be lost");
  switch (frame.kind) {
    case PutFrameKind::put:
      return begin_put(number);
    case PutFrameKind::put_inline:
      return put_inline(number);
    case PutFrameKind::signal:
    case PutFrameKind::settle:
      for (uint32_t other = options_.paths; other < kPathsMax; ++other)
        if (frame.counts[other] != 0)
          throw net::ProtocolError("sent a count of a path that does not exist");
      return take_waiting(number);
    case PutFrameKind::settled:
      ++path.worth;
      return listener_.settled(options_.peer, frame.queue, frame.turn);
    case PutFrameKind::refusal:
      ++path.worth;
      return listener_.refused(options_.peer, frame.queue, frame.check, frame.refusal);
    case PutFrameKind::given_up:
      throw net::ProtocolError("has given this rank up");
    case PutFrameKind::taken:
    case PutFrameKind::closed:
      if (!options_.acknowledged || frame.path >= options_.paths)
        throw net::ProtocolError("tells of a path that cannot be lost");
      if (frame.kind == PutFrameKind::taken)
        return listener_.taken(options_.peer, frame.path, frame.life, frame.turn);
      ++path.worth;
      return listener_.closed(options_.peer, frame.path, frame.life, frame.turn);
  }
}

void PeerReceiver::take_waiting(uint32_t number) {
  Path& path = paths_[number];
  if (!options_.acknowledged) {
    path.waits = true;
    return;
  }
  ++path.worth;
  if (take_effect(path.frame)) return;
  if (waiting_.size() == size_t{options_.queues} * QueuePair::kSlots * 2)
    throw net::ProtocolError("sent more signals than its queues hold");
  waiting_.push_back(path.frame);
}

bool PeerReceiver::effect_of_waiting() {
  return std::erase_if(waiting_, [this](const PutFrame& frame) { return take_effect(frame); }) != 0;
}

void PeerReceiver::landed(uint32_t number) {
  Path& path = paths_[number];
  ++path.worth;
  ++landed_[path.frame.queue][path.frame.origin == 0 ? number : path.frame.origin - 1];
}

void PeerReceiver::reopen(uint32_t number) {
  Path& path = paths_[number];
  path.begin = path.end = path.left = 0;
  path.target = nullptr;
  path.waits = false;
  path.sequence = 0;
}

void PeerReceiver::begin_put(uint32_t number) {
  Path& path = paths_[number];
  const PutFrame& frame = path.frame;
  path.target = nullptr;
  path.left = frame.bytes;
  if (path.left == 0) return landed(number);
  // Of a put that does not fit, no part lands.
  if (std::byte* const whole = target_of(frame, frame.whole_offset, frame.whole_bytes))
    path.target = whole + (frame.offset - frame.whole_offset);
}

void PeerReceiver::put_inline(uint32_t number) {
  const PutFrame& frame = paths_[number].frame;
  if (frame.inline_bytes != 0) {
    if (std::byte* const target = target_of(frame, frame.offset, frame.inline_bytes))
      std::memcpy(target, frame.inlined.data(), frame.inline_bytes);
  }
  landed(number);
}

/// Returns whether a signal or a question does not wait any longer.
bool PeerReceiver::take_effect(const PutFrame& frame) {
  if (ended_[frame.queue]) return true;
  if (!is_due(frame)) return false;
  if (frame.kind == PutFrameKind::settle) {
    listener_.answer_settled(options_.peer, frame.queue, frame.turn);
    return true;
  }
  std::byte* const target = target_of(frame, frame.offset, sizeof(uint64_t));
  if (target == nullptr) return true;
  const uint64_t apart = reinterpret_cast<uintptr_t>(target) % sizeof(uint64_t);
  if (apart != 0) {
    refuse(frame.queue, NetworkCheck::alignment,
           {.region = region_of_key(frame.key), .expected = 0, .seen = apart});
    return true;
  }
  // Releases the earlier puts of the queue, which this thread has stored.
  __atomic_fetch_add(reinterpret_cast<uint64_t*>(target), frame.addend, __ATOMIC_RELEASE);
  return true;
}

bool PeerReceiver::is_due(const PutFrame& frame) const {
  const PathCounts& landed = landed_[frame.queue];
  for (uint32_t path = 0; path < options_.paths; ++path)
    if (static_cast<int32_t>(landed[path] - frame.counts[path]) < 0) return false;
  return true;
}

std::byte* PeerReceiver::target_of(const PutFrame& frame, uint64_t offset, uint64_t bytes) {
  if (ended_[frame.queue]) return nullptr;
  const uint32_t region = region_of_key(frame.key);
  const std::span<std::byte>* const memory = regions_.find(frame.key);
  if (memory == nullptr) {
    // The right key is not for a peer that does not hold it.
    refuse(frame.queue, NetworkCheck::target, {.region = region, .expected = 0, .seen = frame.key});
    return nullptr;
  }
  if (lies_within(offset, bytes, memory->size())) return memory->data() + offset;
  refuse(frame.queue, NetworkCheck::target_range,
         {.region = region, .expected = memory->size(), .seen = offset + bytes});
  return nullptr;
}

void PeerReceiver::refuse(uint32_t queue, NetworkCheck check, const NetworkRefusal& refusal) {
  if (ended_[queue]) return;
  ended_[queue] = true;
  listener_.refuse(options_.peer, queue, check, refusal);
}

bool PeerReceiver::resume() {
  bool went_on = false;
  for (bool again = true; again;) {
    again = effect_of_waiting();
    for (uint32_t number = 0; number < options_.paths; ++number) {
      if (!paths_[number].waits) continue;
      const size_t before = paths_[number].begin;
      parse(number);
      again |= !paths_[number].waits || paths_[number].begin != before;
    }
    went_on |= again;
  }
  return went_on;
}

void PeerReceiver::withdraw(uint32_t region) {
  for (Path& path : paths_) {
    if (path.left == 0 || path.target == nullptr || region_of_key(path.frame.key) != region)
      continue;
    path.target = nullptr;
    refuse(path.frame.queue, NetworkCheck::target,
           {.region = region, .expected = 0, .seen = path.frame.key});
  }
}

}  // namespace tokenyard
