/// Frames to and from one peer, over a channel that takes and delivers bytes in arbitrary portions.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "collectives/interfaces/channel.hpp"
#include "collectives/interfaces/frame.hpp"

namespace tokenyard::collectives {

class Stream {
 public:
  /// Payloads up to this many bytes are copied when posted; larger ones are read while they are
  /// sent.
  static constexpr size_t small = 1024;

  explicit Stream(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  /// Queues a frame. A large payload must stay unchanged until `drained`.
  void post(const FrameHeader& header, std::span<const std::byte> payload);
  /// Hands to the channel as much as it takes. Returns true if nothing is left.
  bool push();
  bool drained() const { return first_ == queue_.size(); }
  /// `posted` returns the number of frames posted since the start, `out` how many of them have been
  /// sent.
  uint64_t posted() const { return out_ + queue_.size() - first_; }
  uint64_t out() const { return out_; }
  /// Returns how many payload bytes of a posted frame belong to their owner again. `frame` counts
  /// from the start.
  uint64_t payload_out(uint64_t frame) const;
  /// Drops the operation's frames of which no byte has been sent; the peer's stream stays intact.
  void drop_unbegun(Sequence sequence);
  /// Copies posted payloads that have not been sent, so that their owners get the memory back.
  void keep_payloads();

  /// Returns the header of the current incoming frame, or null until it is complete. Unchanged
  /// until `finish`.
  const FrameHeader* header();
  uint64_t payload_left() const { return payload_left_; }
  /// Returns a contiguous part of the payload; `consume` takes it.
  std::span<const std::byte> arrived();
  void consume(size_t bytes);
  /// Copies a part of the payload; returns its length in bytes.
  size_t read(std::span<std::byte> into);
  /// As `read`, bypassing the caches where that saves something.
  size_t read_streaming(std::span<std::byte> into);
  /// Discards the payload that has arrived. Returns true once all of it is discarded.
  bool discard();
  /// Ends the current frame, whose payload has been taken; the next header may come.
  void finish();

  uint64_t bytes_sent() const { return channel_->bytes_sent(); }
  /// Returns whether any byte was sent or received since the last call. A frame may take long, and
  /// a thread that moves it must not sleep meanwhile.
  bool take_moved() { return std::exchange(moved_, false); }

 private:
  struct Outgoing {
    std::array<std::byte, sizeof(FrameHeader) + small + 16> head;  // header, small payload, padding
    size_t head_bytes = 0;
    std::span<const std::byte> payload;
    std::vector<std::byte> kept = {};  // memory of `payload`, if its owner has taken it back
    size_t padding = 0;
    size_t taken = 0;
    size_t bytes() const { return head_bytes + payload.size() + padding; }
  };
  bool push_one(Outgoing& frame);
  size_t note(size_t moved) {
    moved_ = moved_ || moved > 0;
    return moved;
  }

  std::shared_ptr<Channel> channel_;
  std::vector<Outgoing> queue_;
  size_t first_ = 0;
  uint64_t out_ = 0;

  std::array<std::byte, sizeof(FrameHeader)> header_bytes_;
  FrameHeader header_;
  size_t header_got_ = 0;
  uint64_t payload_left_ = 0, padding_left_ = 0;
  bool moved_ = false;
};

}  // namespace tokenyard::collectives
