#include "collectives/interfaces/stream.hpp"

#include <algorithm>

#include "collectives/interfaces/streaming_copy.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {
constexpr std::array<std::byte, 16> zeros = {};
}

void Stream::post(const FrameHeader& header, std::span<const std::byte> payload) {
  Outgoing& frame = queue_.emplace_back();
  std::memcpy(frame.head.data(), &header, sizeof header);
  frame.head_bytes = sizeof header;
  const size_t padding = padding_of(payload.size());
  if (payload.size() <= small) {
    if (!payload.empty()) {
      std::memcpy(frame.head.data() + sizeof header, payload.data(), payload.size());
    }
    std::memset(frame.head.data() + sizeof header + payload.size(), 0, padding);
    frame.head_bytes += payload.size() + padding;
  } else {
    frame.payload = payload;
    frame.padding = padding;
  }
  push();
}

bool Stream::push_one(Outgoing& frame) {
  const auto rest_of = [&](std::span<const std::byte> part, size_t before) {
    return frame.taken < before + part.size() ? part.subspan(frame.taken - before)
                                              : std::span<const std::byte>();
  };
  const std::span<const std::byte> parts[] = {
      {frame.head.data(), frame.head_bytes}, frame.payload, {zeros.data(), frame.padding}};
  size_t before = 0;
  for (const std::span<const std::byte> part : parts) {
    const std::span<const std::byte> rest = rest_of(part, before);
    if (!rest.empty()) {
      const size_t taken = note(channel_->send_some(rest));
      frame.taken += taken;
      if (taken < rest.size()) return false;
    }
    before += part.size();
  }
  return true;
}

bool Stream::push() {
  while (first_ < queue_.size()) {
    if (!push_one(queue_[first_])) return false;
    ++first_;
    ++out_;
  }
  queue_.clear();
  first_ = 0;
  return true;
}

uint64_t Stream::payload_out(uint64_t frame) const {
  constexpr uint64_t all = ~uint64_t{0};
  if (frame < out_) return all;
  const Outgoing& outgoing = queue_.at(first_ + (frame - out_));
  if (outgoing.payload.empty()) return all;  // the payload was copied
  return outgoing.taken > outgoing.head_bytes ? outgoing.taken - outgoing.head_bytes : 0;
}

void Stream::drop_unbegun(Sequence sequence) {
  std::erase_if(queue_, [&](const Outgoing& frame) {
    FrameHeader header;
    std::memcpy(&header, frame.head.data(), sizeof header);
    return frame.taken == 0 && header.sequence == sequence;
  });
}

void Stream::keep_payloads() {
  for (size_t i = first_; i < queue_.size(); ++i) {
    Outgoing& frame = queue_[i];
    if (frame.payload.empty() || !frame.kept.empty()) continue;
    frame.kept.assign(frame.payload.begin(), frame.payload.end());
    frame.payload = frame.kept;
  }
}

const FrameHeader* Stream::header() {
  if (header_got_ == sizeof(FrameHeader)) return &header_;
  while (padding_left_ > 0) {
    const size_t skipped = channel_->arrived(padding_left_).size();
    if (skipped == 0) return nullptr;
    channel_->consume(skipped);
    padding_left_ -= skipped;
  }
  header_got_ += note(channel_->receive_some(std::span(header_bytes_).subspan(header_got_)));
  if (header_got_ < sizeof(FrameHeader)) return nullptr;
  std::memcpy(&header_, header_bytes_.data(), sizeof header_);
  if (header_.magic != FrameHeader::magic_value) {
    throw InternalError("a channel's stream has lost its frame boundaries");
  }
  payload_left_ = header_.bytes;
  padding_left_ = padding_of(header_.bytes);
  return &header_;
}

std::span<const std::byte> Stream::arrived() {
  return payload_left_ > 0 ? channel_->arrived(payload_left_) : std::span<const std::byte>();
}

void Stream::consume(size_t bytes) {
  channel_->consume(note(bytes));
  payload_left_ -= bytes;
}

void Stream::finish() {
  if (header_got_ != sizeof(FrameHeader) || payload_left_ != 0) {
    throw InternalError("a frame was finished before all of it had arrived");
  }
  header_got_ = 0;
}

size_t Stream::read(std::span<std::byte> into) {
  const size_t got = note(channel_->receive_some(into.first(std::min(into.size(), payload_left_))));
  payload_left_ -= got;
  return got;
}

size_t Stream::read_streaming(std::span<std::byte> into) {
  if (!channel_->in_place()) return read(into);
  const std::span<const std::byte> piece = arrived();
  const size_t got = std::min(piece.size(), into.size());
  copy_streaming(into.data(), piece.data(), got);
  consume(got);
  return got;
}

bool Stream::discard() {
  while (payload_left_ > 0) {
    const size_t here = arrived().size();
    if (here == 0) return false;
    consume(here);
  }
  return true;
}

}  // namespace tokenyard::collectives
