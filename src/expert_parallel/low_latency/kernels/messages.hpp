/// Low latency between ranks without load/store: messages by put.
///
///     send kernel        -- stores, as to a peer -->    the peer's mirror, in this rank's memory
///     messages kernel    packs it into a stage, puts it, then signals the call's epoch
///                                                       -->    landing at the peer
///     messages kernel    <-- credit ---------------    awaits the epoch, stores the content into
///                                                       its own window as a near source would
///     receive kernel                                    reads its window, as always
///
/// The kernels of dispatch and combine know nothing of this: they store to a peer's window, whose
/// address is that of its mirror, and find what came in their own window. Each block of the
/// messages kernel stands for some such peers, of which its first thread alone uses the queues.
///
/// 1. **One put and one signal per message.** A channel per kind of message, with a landing and a
///    stage for each parity of its epochs: rows and ids of a dispatch, weights of a combine that
///    publishes them, sums of a combine.
/// 2. **Words hold epochs.** A signal adds the number of epochs since the last one, so the word
///    `arrived` reaches e only once the puts of e and of all epochs before have landed: each signal
///    waits for all puts before it on its queue. Words are never reset, not by a restart either.
/// 3. **A message is put once its landing is free**: `credited` has reached the epoch that used the
///    landing last. A receiver credits a message that it has copied, and also one that came too
///    late, for a call that it has ended without it. So no put is under way to a landing when
///    another one is posted to it, and a late put of an older epoch meets nothing newer.
/// 4. **Masks are local on both sides**, as within a host: nothing is put to a masked rank, nor
///    awaited from it. The message of a masked rank is neither copied nor credited, until a later
///    call awaits that rank again.
/// 5. **A waiting block sends heartbeats** by signal to its peers, until all blocks' waits have
///    ended, and passes those that come on to the word in the window that near ranks store. It
///    credits messages of all its peers that come too late, whichever it waits for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"
#include "device/network.hpp"
#include "expert_parallel/low_latency/kernels/call.hpp"
#include "expert_parallel/low_latency/kernels/row_layout.hpp"
#include "expert_parallel/low_latency/kernels/sums_layout.hpp"

namespace tokenyard::low_latency {

inline constexpr uint32_t kMessagesThreadsMax = 512;

enum class Channel : uint32_t { rows, weights, sums };
inline constexpr uint32_t kChannels = 3;

/// The first bytes of a message.
struct alignas(16) MessageHeader {
  uint32_t epoch;    ///< of its call
  uint32_t format;   ///< rows: RowFormat; sums: whether they are LogFMT codes
  uint32_t tokens;   ///< of its source in this batch
  uint32_t weights;  ///< rows and weights: 1 + the source's number for the batch, or 0: none inside
};

/// Where things lie in a message, and messages in the memory that a rank shares with its network.
/// One layout for all ranks.
class MessageLayout {
 public:
  struct Shape {
    uint32_t peers, tokens_max, topk;
    uint32_t row_pieces;      ///< per row, in any format
    uint32_t partial_pieces;  ///< per partial sum
  };

  MessageLayout() = default;
  explicit MessageLayout(const Shape& shape)
      : tokens_max_(shape.tokens_max),
        ids_words_(shape.tokens_max * packed_ids_of(shape.topk)),
        weights_bytes_(pieces_of(shape.tokens_max * shape.topk * sizeof(float))) {
    bytes_[0] = lines_of(rows_at(true) + size_t{shape.tokens_max} * shape.row_pieces * kPiece);
    bytes_[1] = lines_of(weights_at(Channel::weights) + weights_bytes_);
    bytes_[2] = lines_of(sums_at() + size_t{shape.tokens_max} * shape.partial_pieces * kPiece);
    words_bytes_ = lines_of(size_t{shape.peers} * kWords * sizeof(uint64_t));
    per_peer_ = 4 * (bytes_[0] + bytes_[1] + bytes_[2]);
    all_bytes_ = words_bytes_ + shape.peers * per_peer_;
  }

  // In a message.
  TOKENYARD_HOST_DEVICE static size_t ids_at() { return sizeof(MessageHeader); }
  TOKENYARD_HOST_DEVICE size_t weights_at(Channel channel) const {
    return ids_at() + (channel == Channel::rows ? ids_words_ * kPiece : 0);
  }
  /// `weights`: whether the message has any.
  TOKENYARD_HOST_DEVICE size_t rows_at(bool weights) const {
    return weights_at(Channel::rows) + (weights ? weights_bytes_ : 0);
  }
  /// Bit t of these words: the message has a sum of token t.
  TOKENYARD_HOST_DEVICE static size_t bits_at() { return sizeof(MessageHeader); }
  TOKENYARD_HOST_DEVICE size_t sums_at() const {
    return bits_at() + pieces_of((tokens_max_ + 31) / 32 * sizeof(uint32_t));
  }
  TOKENYARD_HOST_DEVICE uint32_t ids_words() const { return ids_words_; }
  TOKENYARD_HOST_DEVICE size_t weights_bytes() const { return weights_bytes_; }

  // In the memory of a rank. uint64_t words that signals of the peer write:
  TOKENYARD_HOST_DEVICE static size_t arrived(uint32_t peer, Channel channel) {
    return word(peer, static_cast<uint32_t>(channel));
  }
  TOKENYARD_HOST_DEVICE static size_t credited(uint32_t peer, Channel channel) {
    return word(peer, kChannels + static_cast<uint32_t>(channel));
  }
  TOKENYARD_HOST_DEVICE static size_t beats(uint32_t peer) { return word(peer, 2 * kChannels); }
  TOKENYARD_HOST_DEVICE size_t landing(uint32_t peer, Channel channel, uint32_t parity) const {
    return place(peer, channel, parity);
  }
  TOKENYARD_HOST_DEVICE size_t stage(uint32_t peer, Channel channel, uint32_t parity) const {
    return place(peer, channel, 2 + parity);
  }
  size_t bytes() const { return all_bytes_; }

 private:
  static constexpr size_t kPiece = sizeof(Bytes16), kLine = 128;
  static constexpr uint32_t kWords = 8;  ///< of a peer, a cache line
  static_assert(2 * kChannels + 1 <= kWords);

  TOKENYARD_HOST_DEVICE static constexpr size_t pieces_of(size_t bytes) {
    return (bytes + kPiece - 1) / kPiece * kPiece;
  }
  static size_t lines_of(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  TOKENYARD_HOST_DEVICE static size_t word(uint32_t peer, uint32_t number) {
    return (size_t{peer} * kWords + number) * sizeof(uint64_t);
  }
  TOKENYARD_HOST_DEVICE size_t place(uint32_t peer, Channel channel, uint32_t which) const {
    size_t at = words_bytes_ + peer * per_peer_;
    for (uint32_t before = 0; before < static_cast<uint32_t>(channel); ++before)
      at += 4 * bytes_[before];
    return at + which * bytes_[static_cast<uint32_t>(channel)];
  }

  uint32_t tokens_max_ = 0, ids_words_ = 0;
  size_t weights_bytes_ = 0;
  size_t bytes_[kChannels] = {};  ///< of a message
  size_t words_bytes_ = 0, per_peer_ = 0, all_bytes_ = 0;
};

/// A rank that is reached by put. In device memory, written once.
struct PutPeer {
  uint32_t rank;
  uint32_t there;        ///< this rank's number among the put peers of that one
  NetworkTarget memory;  ///< shared by that rank with its network
};

/// State of a put peer between calls, in device memory. One thread uses it.
struct alignas(64) PutState {
  uint32_t signalled[kChannels];  ///< epoch that `arrived` there reaches by this rank's signals
  uint32_t credited[kChannels];   ///< the same of `credited` there
  uint32_t sent[kChannels][2];    ///< by parity: epoch of the last message put
  uint32_t ticket[kChannels][2];  ///< by parity: number of the last request that reads the stage
  uint32_t beats_heard;           ///< heartbeats passed on
  uint32_t publishes_late[2];     ///< by this rank's number for a batch: whether the peer's combine
                                  ///< publishes its weights
};

/// Words of a rank's own memory. Zero at first.
struct PutWorkspace {
  uint64_t ended;      ///< waits of blocks, in all launches together
  uint32_t retired;    ///< 1: kernels put nothing and end at once, since the ranks have changed
  AbortWord never[1];  ///< [1 + ranks] zeros: a queue's waits end by their deadline

  static constexpr size_t bytes(uint32_t ranks) {
    return sizeof(PutWorkspace) + ranks * sizeof(AbortWord);
  }
};

/// This rank's put peers, and what it has for them.
struct PutPaths {
  uint32_t count;
  const PutPeer* peers;  ///< [count]
  PutState* states;      ///< [count]
  PutWorkspace* workspace;
  MessageLayout layout;
  std::byte* memory;  ///< shared with the network
  MemoryKey key;      ///< of that
  NetworkQueues queues;
  uint32_t queue;        ///< at every peer
  uint32_t first_epoch;  ///< at which all words are zero

  TOKENYARD_DEVICE std::byte* landing(uint32_t peer, Channel channel, uint32_t parity) const {
    return memory + layout.landing(peer, channel, parity);
  }
  TOKENYARD_DEVICE std::byte* stage(uint32_t peer, Channel channel, uint32_t parity) const {
    return memory + layout.stage(peer, channel, parity);
  }
};

struct MessagesParams {
  CallParams call;  ///< `part`: what of the messages this kernel does
  PutPaths paths;
  Channel channel;
  uint32_t tokens, tokens_max, topk;  ///< `tokens`: this rank's
  RowLayout row;                      ///< of rows
  SumsLayout sums;                    ///< of sums
  bool logfmt;
  bool publishes;                 ///< the message carries this rank's weights
  const float* weights;           ///< [tokens, topk], if it does
  uint32_t batch;                 ///< this rank's number for the batch, 0 or 1
  const uint32_t* weights_stamp;  ///< weights: of the batch
  const int32_t* row_slot;        ///< sums: [ranks, tokens_max, topk], of the dispatch
  uint64_t* waited;               ///< [ranks] cycles waited for a message; may be null
};

TOKENYARD_DECLARE_KERNEL(messages_kernel, MessagesParams);

}  // namespace tokenyard::low_latency
