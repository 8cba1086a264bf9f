#include "collectives/interfaces/frame_protocol.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

Breakage Breakage::of(const WaitFacts& facts) {
  Breakage breakage;
  breakage.rank = facts.rank;
  breakage.expected = facts.expected;
  breakage.seen = facts.seen;
  breakage.waited_ns = static_cast<uint64_t>(facts.waited_s * 1e9);
  breakage.phase_bytes = static_cast<uint32_t>(std::min(facts.phase.size(), sizeof breakage.phase));
  std::memcpy(breakage.phase, facts.phase.data(), breakage.phase_bytes);
  return breakage;
}

WaitFacts Breakage::facts() const {
  const size_t bytes = std::min<size_t>(phase_bytes, sizeof phase);
  return {.rank = rank,
          .phase = std::string(phase, bytes),
          .expected = expected,
          .seen = seen,
          .waited_s = static_cast<double>(waited_ns) * 1e-9};
}

FrameProtocol::FrameProtocol(uint32_t ranks, uint32_t self, OpenChannel open)
    : peers_(ranks), self_(self), open_(std::move(open)) {}

void FrameProtocol::begin(Sequence sequence, const Signature& signature) {
  sequence_ = sequence;
  signature_ = signature;
  asked_ = false;
  for (Peer& peer : peers_) {
    peer.steps_sent = peer.steps_received = 0;
    peer.refused = false;
  }
}

Stream& FrameProtocol::stream(uint32_t rank) {
  std::optional<Stream>& stream = peers_.at(rank).stream;
  if (!stream) stream.emplace(open_(rank));
  return *stream;
}

FrameHeader FrameProtocol::header_of(FrameKind kind, uint64_t bytes) const {
  FrameHeader header;
  header.kind = kind;
  header.sequence = sequence_;
  header.bytes = bytes;
  header.signature = signature_;
  return header;
}

void FrameProtocol::post(uint32_t to, std::span<const std::byte> payload) {
  FrameHeader header = header_of(FrameKind::data, payload.size());
  header.step = peers_[to].steps_sent++;
  stream(to).post(header, payload);
}

Sent FrameProtocol::sent() {
  return Sent(*this);
}

SentUntil FrameProtocol::sent_until(uint32_t to, uint64_t frames) {
  return SentUntil(*this, to, frames);
}

Receive FrameProtocol::receive(uint32_t from, std::span<std::byte> into, bool streaming) {
  return Receive(*this, from, into, streaming);
}

bool FrameProtocol::push() {
  bool drained = true;
  for (Peer& peer : peers_) {
    if (peer.stream && !peer.stream->drained()) drained = peer.stream->push() && drained;
  }
  return drained;
}

bool FrameProtocol::drained() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return !peer.stream || peer.stream->drained(); });
}

bool FrameProtocol::take_moved() {
  bool moved = false;
  for (Peer& peer : peers_) moved = (peer.stream && peer.stream->take_moved()) || moved;
  return moved;
}

uint64_t FrameProtocol::bytes_sent() const {
  uint64_t bytes = 0;
  for (const Peer& peer : peers_) bytes += peer.stream ? peer.stream->bytes_sent() : 0;
  return bytes;
}

Stream* FrameProtocol::expect(uint32_t from, uint64_t bytes) {
  Peer& peer = peers_[from];
  Stream& incoming = stream(from);
  for (;;) {
    const FrameHeader* header = incoming.header();
    if (header == nullptr) return nullptr;
    if (header->kind != FrameKind::data) {
      if (!take_notice(peer, *header)) return nullptr;
      continue;
    }
    peer.heard = std::max(peer.heard, header->sequence);
    check(peer, from, *header, bytes);
    return &incoming;
  }
}

void FrameProtocol::finish_frame(uint32_t from) {
  ++peers_[from].steps_received;
  stream(from).finish();
}

bool FrameProtocol::take_notice(Peer& peer, const FrameHeader& header) {
  Stream& incoming = *peer.stream;
  const FrameHeader notice = header;  // `finish` overwrites it
  if (notice.kind == FrameKind::here) {
    incoming.finish();
    peer.heard = std::max(peer.heard, notice.sequence);
    asked_ = asked_ || notice.sequence == sequence_;
    return true;
  }
  const bool known = notice.kind == FrameKind::refusal || notice.kind == FrameKind::broken;
  const size_t expected = notice.kind == FrameKind::refusal ? sizeof(Refusal) : sizeof(Breakage);
  if (!known || notice.bytes != expected) {
    throw InternalError(fmt::format("a frame of kind {} with {} bytes came in operation {}",
                                    static_cast<int>(notice.kind), notice.bytes, sequence_));
  }
  peer.notice_got += incoming.read({peer.notice.data() + peer.notice_got, incoming.payload_left()});
  if (incoming.payload_left() > 0) return false;
  peer.notice_got = 0;
  incoming.finish();
  if (notice.kind == FrameKind::refusal) {
    peer.refused = true;
    CallsDiffer differ;
    std::memcpy(&differ.refusal, peer.notice.data(), sizeof differ.refusal);
    throw differ;
  }
  BrokenByPeer broken;
  std::memcpy(static_cast<void*>(&broken.breakage), peer.notice.data(), sizeof broken.breakage);
  throw broken;
}

void FrameProtocol::check(const Peer& peer, uint32_t from, const FrameHeader& header,
                          uint64_t bytes) const {
  if (header.sequence != sequence_) {
    throw InternalError(fmt::format("a frame of operation {} came from rank {} in operation {}",
                                    header.sequence, from, sequence_));
  }
  check_signature(from, header, bytes);
  if (header.step != peer.steps_received) {
    throw InternalError(fmt::format("step {} came from rank {}, but step {} was due", header.step,
                                    from, peer.steps_received));
  }
}

void FrameProtocol::check_signature(uint32_t from, const FrameHeader& header,
                                    uint64_t bytes) const {
  if (header.signature == signature_ && header.bytes == bytes) return;
  throw CallsDiffer{{.one = self_,
                     .other = from,
                     .one_called = signature_,
                     .other_called = header.signature,
                     .one_bytes = bytes,
                     .other_bytes = header.bytes}};
}

void FrameProtocol::poll_others(std::span<const uint32_t> ranks) {
  for (const uint32_t rank : ranks) {
    if (rank == self_) continue;
    while (const FrameHeader* header = stream(rank).header()) {
      peers_[rank].heard = std::max(peers_[rank].heard, header->sequence);
      // A peer that has finished this operation may refuse the next one; that does not matter here.
      if (header->sequence > sequence_) break;
      if (header->kind == FrameKind::data) {
        if (header->sequence == sequence_) check_signature(rank, *header, header->bytes);
        break;
      }
      if (!take_notice(peers_[rank], *header)) break;
    }
  }
}

void FrameProtocol::say_here(std::span<const uint32_t> ranks) {
  for (const uint32_t rank : ranks) {
    if (rank != self_) stream(rank).post(header_of(FrameKind::here, 0), {});
  }
}

std::vector<uint32_t> FrameProtocol::absent(std::span<const uint32_t> ranks) {
  std::vector<uint32_t> absent;
  for (const uint32_t rank : ranks) {
    if (rank == self_) continue;
    Peer& peer = peers_[rank];
    // Looks at the next frame, and leaves it to its wait unless it is a "here".
    while (const FrameHeader* header = stream(rank).header()) {
      peer.heard = std::max(peer.heard, header->sequence);
      if (header->kind != FrameKind::here) break;
      stream(rank).finish();
    }
    if (peer.heard < sequence_) absent.push_back(rank);
  }
  return absent;
}

void FrameProtocol::refuse(std::span<const uint32_t> ranks, const Refusal& refusal) {
  for (const uint32_t rank : ranks) {
    if (rank == self_) continue;
    // The peer may still need the last frame of the previous operation.
    stream(rank).drop_unbegun(sequence_);
    stream(rank).post(header_of(FrameKind::refusal, sizeof refusal),
                      std::as_bytes(std::span(&refusal, 1)));
  }
}

bool FrameProtocol::refused(std::span<const uint32_t> ranks) {
  bool all = push();
  for (const uint32_t rank : ranks) {
    Peer& peer = peers_[rank];
    if (rank == self_) continue;
    while (!peer.refused) {
      const FrameHeader* header = stream(rank).header();
      if (header == nullptr || !stream(rank).discard()) break;
      // A rank whose operation has failed sends nothing more in this epoch.
      peer.refused = header->kind == FrameKind::refusal || header->kind == FrameKind::broken;
      stream(rank).finish();
    }
    all = all && peer.refused;
  }
  return all;
}

void FrameProtocol::post_breakage(std::span<const uint32_t> ranks, const Breakage& breakage) {
  for (const uint32_t rank : ranks) {
    if (rank == self_) continue;
    stream(rank).post(header_of(FrameKind::broken, sizeof breakage),
                      std::as_bytes(std::span(&breakage, 1)));
  }
}

bool Receive::ready() {
  Stream* stream = talk_.expect(from_, into_.size());
  if (stream == nullptr) return false;
  while (got_ < into_.size()) {
    const size_t got = streaming_ ? stream->read_streaming(into_.subspan(got_))
                                  : stream->read(into_.subspan(got_));
    if (got == 0) return false;
    got_ += got;
  }
  talk_.finish_frame(from_);
  return true;
}

std::string Receive::describe() const {
  return describe_receive(from_, got_, into_.size());
}

std::string describe_receive(uint32_t from, uint64_t got, uint64_t bytes) {
  return fmt::format("{} of {} bytes from rank {}", got, bytes, from);
}

}  // namespace tokenyard::collectives
