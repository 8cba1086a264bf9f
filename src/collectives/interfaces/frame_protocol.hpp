/// The frames that ranks of a group exchange in an operation, in the order in which both ends
/// expect them. A frame that does not match this rank's call is not accepted: it ends the operation
/// with CallsDiffer.
///
/// Posting never waits. Bytes that the channel cannot take are queued, and each `push` goes on with
/// them. So an algorithm posts all it can, then receives in the order in which its peers post.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/interfaces/stream.hpp"
#include "collectives/interfaces/task.hpp"

namespace tokenyard::collectives {

/// Thrown by waits: two ranks have made different calls.
struct CallsDiffer {
  Refusal refusal;
};

/// The failure of an operation on a rank that could not wait for agreement. It is sent to the rest
/// of the group in the first frames of the next epoch.
struct Breakage {
  uint32_t rank = 0;  ///< the rank that did not answer
  uint32_t phase_bytes = 0;
  uint64_t expected = 0, seen = 0, waited_ns = 0;
  char phase[232] = {};
  static Breakage of(const WaitFacts& facts);
  WaitFacts facts() const;
};
/// Thrown by waits: a peer has sent a Breakage.
struct BrokenByPeer {
  Breakage breakage;
};

class Receive;
template <typename Beside>
class ReceiveBeside;
template <typename Consumer>
class ReceiveEach;
class Sent;
class SentUntil;

/// Ranks are counted within the group.
class FrameProtocol {
 public:
  using OpenChannel = std::function<std::shared_ptr<Channel>(uint32_t rank)>;
  FrameProtocol(uint32_t ranks, uint32_t self, OpenChannel open);

  /// Starts an operation: frames belong to it from now on.
  void begin(Sequence sequence, const Signature& signature);
  Sequence sequence() const { return sequence_; }
  uint32_t self() const { return self_; }

  void post(uint32_t to, std::span<const std::byte> payload);
  /// Waits until everything posted has been handed to the channels, so the caller owns its memory
  /// again.
  Sent sent();
  /// Returns the number of frames posted to this rank so far; `sent_until` waits until that many
  /// have been handed over.
  uint64_t posted(uint32_t to) { return stream(to).posted(); }
  SentUntil sent_until(uint32_t to, uint64_t frames);
  /// `streaming`: the data will not be read soon, so they may bypass the caches.
  Receive receive(uint32_t from, std::span<std::byte> into, bool streaming = false);
  /// As `receive`; calls `beside(bytes)` with the number of bytes that have just arrived.
  template <typename Beside>
  ReceiveBeside<Beside> receive_beside(uint32_t from, std::span<std::byte> into, bool streaming,
                                       Beside beside);
  /// Passes the payload to `consume(offset, span)` piece by piece, in place. Pieces are multiples
  /// of `granule` bytes (at most 16).
  template <typename Consumer>
  ReceiveEach<Consumer> receive_each(uint32_t from, uint64_t bytes, size_t granule,
                                     Consumer consume);
  /// As `receive_each`, for a `consume` that overwrites the payload of frame `posted`, which this
  /// rank has posted to the same peer with as many bytes. `consume` gets a byte only after the byte
  /// in its place has been sent.
  template <typename Consumer>
  ReceiveEach<Consumer> receive_in_exchange(uint32_t from, uint64_t posted, uint64_t bytes,
                                            size_t granule, Consumer consume);

  /// Hands queued frames to the channels. Returns true if nothing is left.
  bool push();
  bool drained() const;
  /// Returns whether any byte was sent or received since the last call.
  bool take_moved();
  uint64_t bytes_sent() const;

  /// For operations that take long: announces that this rank has begun, and looks whether the
  /// others have. `absent` returns those of `ranks` not heard of in this operation.
  void say_here(std::span<const uint32_t> ranks);
  std::vector<uint32_t> absent(std::span<const uint32_t> ranks);
  /// Returns whether another rank has announced itself in this operation, and so asks for
  /// announcements.
  bool asked() const { return asked_; }
  /// Looks at frames from ranks that no wait is for: if calls differ, ranks may wait for one
  /// another in a circle. Throws like `expect`.
  void poll_others(std::span<const uint32_t> ranks);

  /// `refuse` sends a refusal to `ranks` and drops posted frames that have not begun. `refused`
  /// then discards what arrives, and returns true once each of `ranks` has sent its own refusal;
  /// poll it.
  void refuse(std::span<const uint32_t> ranks, const Refusal& refusal);
  bool refused(std::span<const uint32_t> ranks);

  /// Announces that the operation has failed here. Nothing more may be posted in this epoch.
  void post_breakage(std::span<const uint32_t> ranks, const Breakage& breakage);
  /// Returns the latest operation of which a frame from this rank has arrived.
  Sequence heard(uint32_t rank) const { return peers_[rank].heard; }

  /// For waits. Returns the stream once the next frame from this rank has begun to arrive, else
  /// null. Throws if the frame does not match.
  Stream* expect(uint32_t from, uint64_t bytes);
  Stream& stream(uint32_t rank);
  void finish_frame(uint32_t from);

 private:
  struct Peer {
    std::optional<Stream> stream;
    uint32_t steps_sent = 0, steps_received = 0;
    Sequence heard = 0;  // latest operation of a frame from it
    bool refused = false;
    std::array<std::byte, sizeof(Breakage)> notice;  // arrived part of a refusal or breakage
    size_t notice_got = 0;
  };
  /// Handles a frame that belongs to no step. Returns true if it consumed the whole frame.
  bool take_notice(Peer& peer, const FrameHeader& header);
  void check_signature(uint32_t from, const FrameHeader& header, uint64_t bytes) const;
  void check(const Peer& peer, uint32_t from, const FrameHeader& header, uint64_t bytes) const;
  FrameHeader header_of(FrameKind kind, uint64_t bytes) const;

  std::vector<Peer> peers_;
  uint32_t self_;
  OpenChannel open_;
  Sequence sequence_ = 0;
  Signature signature_;
  bool asked_ = false;
};

/// Waits until a frame has filled `into`.
class Receive : public Wait {
 public:
  Receive(FrameProtocol& talk, uint32_t from, std::span<std::byte> into, bool streaming)
      : talk_(talk), from_(from), into_(into), streaming_(streaming) {}
  bool ready() override;
  std::string describe() const override;
  std::optional<uint32_t> awaited() const override { return from_; }

 protected:
  size_t got() const { return got_; }

 private:
  FrameProtocol& talk_;
  uint32_t from_;
  std::span<std::byte> into_;
  bool streaming_;
  size_t got_ = 0;
};

template <typename Beside>
class ReceiveBeside final : public Receive {
 public:
  ReceiveBeside(const Receive& receive, Beside beside)
      : Receive(receive), beside_(std::move(beside)) {}
  bool ready() override {
    const size_t before = got();
    const bool all = Receive::ready();
    if (got() > before) beside_(got() - before);
    return all;
  }

 private:
  Beside beside_;
};

template <typename Beside>
ReceiveBeside<Beside> FrameProtocol::receive_beside(uint32_t from, std::span<std::byte> into,
                                                    bool streaming, Beside beside) {
  return ReceiveBeside<Beside>(receive(from, into, streaming), std::move(beside));
}

class Sent : public Wait {
 public:
  explicit Sent(FrameProtocol& talk) : talk_(talk) {}
  bool ready() override { return talk_.push(); }
  std::string describe() const override { return "room for what it sends"; }

 private:
  FrameProtocol& talk_;
};

class SentUntil : public Wait {
 public:
  SentUntil(FrameProtocol& talk, uint32_t to, uint64_t frames)
      : talk_(talk), to_(to), frames_(frames) {}
  bool ready() override {
    talk_.push();
    return talk_.stream(to_).out() >= frames_;
  }
  std::string describe() const override { return "room for what it sends"; }

 private:
  FrameProtocol& talk_;
  uint32_t to_;
  uint64_t frames_;
};

template <typename Consumer>
class ReceiveEach : public Wait {
 public:
  ReceiveEach(FrameProtocol& talk, uint32_t from, uint64_t bytes, size_t granule, Consumer consume,
              std::optional<uint64_t> posted = std::nullopt)
      : talk_(talk),
        from_(from),
        bytes_(bytes),
        granule_(granule),
        consume_(std::move(consume)),
        posted_(posted) {}

  bool ready() override {
    Stream* stream = talk_.expect(from_, bytes_);
    if (stream == nullptr) return false;
    while (done_ < bytes_) {
      if (split_bytes_ == 0) {
        const std::span<const std::byte> piece = stream->arrived();
        if (piece.empty()) return false;
        const uint64_t here = std::min<uint64_t>(piece.size(), free_now(*stream));
        const size_t whole = static_cast<size_t>(here - here % granule_);
        if (whole > 0) {
          consume_(done_, piece.first(whole));
          stream->consume(whole);
          done_ += whole;
          continue;
        }
        if (piece.size() >= granule_) return false;
      }
      // An element crosses the end of a piece; it is assembled here.
      if (split_bytes_ < granule_) {
        const size_t got = stream->read({split_ + split_bytes_, granule_ - split_bytes_});
        if (got == 0) return false;
        split_bytes_ += got;
        continue;
      }
      if (free_now(*stream) < granule_) return false;
      consume_(done_, std::span<const std::byte>(split_, granule_));
      done_ += granule_;
      split_bytes_ = 0;
    }
    talk_.finish_frame(from_);
    return true;
  }
  std::string describe() const override;
  std::optional<uint32_t> awaited() const override { return from_; }

 private:
  /// Returns how many more bytes `consume_` may have, which is how many it may overwrite. Also
  /// sends, so that the rings of two ranks that wait for each other do not both stay full.
  uint64_t free_now(Stream& stream) const {
    if (!posted_) return bytes_ - done_;
    stream.push();
    const uint64_t out = std::min(stream.payload_out(*posted_), bytes_);
    return out > done_ ? out - done_ : 0;
  }

  FrameProtocol& talk_;
  uint32_t from_;
  uint64_t bytes_, done_ = 0;
  size_t granule_, split_bytes_ = 0;
  alignas(16) std::byte split_[16];
  Consumer consume_;
  std::optional<uint64_t> posted_;
};

std::string describe_receive(uint32_t from, uint64_t got, uint64_t bytes);

template <typename Consumer>
std::string ReceiveEach<Consumer>::describe() const {
  return describe_receive(from_, done_, bytes_);
}

template <typename Consumer>
ReceiveEach<Consumer> FrameProtocol::receive_each(uint32_t from, uint64_t bytes, size_t granule,
                                                  Consumer consume) {
  return ReceiveEach<Consumer>(*this, from, bytes, granule, std::move(consume));
}

template <typename Consumer>
ReceiveEach<Consumer> FrameProtocol::receive_in_exchange(uint32_t from, uint64_t posted,
                                                         uint64_t bytes, size_t granule,
                                                         Consumer consume) {
  return ReceiveEach<Consumer>(*this, from, bytes, granule, std::move(consume), posted);
}

}  // namespace tokenyard::collectives
