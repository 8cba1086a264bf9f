/// Frames to one peer and from it, over a channel that takes and gives bytes as it likes.
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
  /// Payloads up to this are copied when they are posted; larger ones are read as room comes.
  static constexpr size_t small = 1024;

  explicit Stream(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  /// Queues a frame. A large payload must stay as it is until `drained`.
  void post(const FrameHeader& header, std::span<const std::byte> payload);
  /// Hands to the channel what it has room for. True if nothing is left.
  bool push();
  bool drained() const { return first_ == queue_.size(); }
  /// Frames that were posted since the beginning, and those of them that are out.
  uint64_t posted() const { return out_ + queue_.size() - first_; }
  uint64_t out() const { return out_; }
  /// Bytes of a frame's payload whose memory is its owner's again. Frames are counted since the
  /// beginning; this one has been posted.
  uint64_t payload_out(uint64_t frame) const;
  /// Drops frames of one operation of which no byte is out: the peer can read on.
  void drop_unbegun(Sequence sequence);
  /// Copies what is posted and not yet out, so that its owner may have its memory back.
  void keep_payloads();

  /// The header of the frame that is being received; null until all of it has come. Stays the same
  /// until `finish`.
  const FrameHeader* header();
  uint64_t payload_left() const { return payload_left_; }
  /// Takes a part of the payload that lies in one piece; call `consume` when done with it.
  std::span<const std::byte> arrived();
  void consume(size_t bytes);
  /// Copies a part of the payload.
  size_t read(std::span<std::byte> into);
  /// The same, past the caches where that spares something.
  size_t read_streaming(std::span<std::byte> into);
  /// Throws away what has come of the payload. True if that was the rest of it.
  bool discard();
  /// The whole payload has been taken; the next header may come.
  void finish();

  uint64_t bytes_sent() const { return channel_->bytes_sent(); }
  /// Whether a byte went out or came in since somebody last asked: a frame may take long, and who
  /// moves it must not go to sleep over it.
  bool take_moved() { return std::exchange(moved_, false); }

 private:
  struct Outgoing {
    std::array<std::byte, sizeof(FrameHeader) + small + 16> head;  // header, small payload, padding
    size_t head_bytes = 0;
    std::span<const std::byte> payload;
    std::vector<std::byte> kept = {};  // where `payload` lies, if its owner has taken it back
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
