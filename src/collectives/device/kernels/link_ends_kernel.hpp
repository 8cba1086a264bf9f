/// The facts of a call between hosts that the warps of a block share, and a rank's ends of its
/// links.
#pragma once

#include <algorithm>
#include <bit>

#include "collectives/device/kernels/between_hosts.hpp"
#include "collectives/device/kernels/device_call_kernel.hpp"
#include "collectives/device/kernels/pieces.hpp"

namespace tokenyard::device_collectives {

/// Barriers of these kernels, beside those of every call.
enum class BetweenBarrier : uint32_t {
  moved = 13,  ///< the warps that move data have ended a step
};

struct BetweenShared : CallShared {
  uint32_t stop[2];  ///< by the parity of steps: the warps that move data end
};

/// The deadlines of a call. Each kind of wait ends later than those that it may depend on, so the
/// error names the rank that is silent.
class BetweenDeadlines {
 public:
  TOKENYARD_DEVICE explicit BetweenDeadlines(const WaitContext& context)
      : links_context_(later(context, 8)),
        host_context_(later(context, 4)),
        words(context.start()),
        links(links_context_.start()),
        host(host_context_.start()) {}

 private:
  TOKENYARD_DEVICE static WaitContext later(WaitContext context, uint32_t part) {
    context.timeout_ns += context.timeout_ns / part;
    return context;
  }
  const WaitContext links_context_, host_context_;

 public:
  const Deadline words;  ///< of words that each rank sends when it begins its call
  const Deadline links;  ///< of chunks and credits of a rail peer, which may wait for its host
  const Deadline host;   ///< of chunks of ranks of this host, which may wait for other hosts
};

/// A chunk of every message.
struct HostChunk {
  uint64_t begin;  ///< bytes of a message before it
  uint64_t round;  ///< its number in the channel
};

/// The facts that the warps of a block that move data share.
struct BetweenWork {
  const BetweenHostsParams& params;
  const CallParams& call;
  const BetweenDeadlines& deadlines;
  const uint64_t epoch;
  const uint32_t digest, parity;

  TOKENYARD_DEVICE const HostTable& hosts() const { return params.hosts; }
  TOKENYARD_DEVICE CallWord word() const { return CallWord::of(epoch, call.signature); }
  /// Returns the rounds of a channel: the chunks that it has of the longest message.
  TOKENYARD_DEVICE uint64_t rounds(uint32_t channel) const {
    return rounds_of(channel, call.movement.bytes(), params.chunk_bytes);
  }
  TOKENYARD_DEVICE uint64_t rounds_of(uint32_t channel, uint64_t bytes,
                                      uint32_t chunk_bytes) const {
    const uint64_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
    return chunks <= channel ? 0 : (chunks - channel - 1) / params.near.channels + 1;
  }
  TOKENYARD_DEVICE HostChunk chunk(uint32_t channel, uint64_t round) const {
    return {.begin = (round * params.near.channels + channel) * params.chunk_bytes, .round = round};
  }
  /// Returns the bytes of a chunk of the message between two ranks; 0 beyond its end.
  TOKENYARD_DEVICE uint32_t bytes_of(const HostChunk& chunk, uint32_t source,
                                     uint32_t destination) const {
    return bytes_in(chunk, call.movement.bytes_between(source, destination), params.chunk_bytes);
  }
  TOKENYARD_DEVICE static uint32_t bytes_in(const HostChunk& chunk, uint64_t bytes,
                                            uint32_t chunk_bytes) {
    return static_cast<uint32_t>(
        std::min<uint64_t>(chunk_bytes, std::max(bytes, chunk.begin) - chunk.begin));
  }
  /// Returns what `filled` and `consumed` say after so many rounds.
  TOKENYARD_DEVICE Bytes16 word_of(uint64_t rounds) const {
    return {{static_cast<uint32_t>(epoch), digest, static_cast<uint32_t>(rounds),
             static_cast<uint32_t>(rounds >> 32)}};
  }
  TOKENYARD_DEVICE Peer<Bytes16> near_word(uint32_t rank, size_t offset) const {
    return (params.near_windows.of(rank) + static_cast<std::ptrdiff_t>(offset)).as<Bytes16>();
  }
  /// Returns a place in the window of a rank of this host, for the rank at `place`: in every call,
  /// one rank alone writes there.
  TOKENYARD_DEVICE Peer<std::byte> near_chunk(uint32_t rank, uint32_t channel, uint64_t round,
                                              uint32_t place, uint32_t number) const {
    const uint32_t index = place * params.hosts.served_max + number;
    return params.near_windows.of(rank) +
           static_cast<std::ptrdiff_t>(params.near.chunk(parity, channel, round, index));
  }
};

/// Waits for a word of a rank of this host that says that it has ended so many rounds.
TOKENYARD_DEVICE bool await_rounds(const BetweenWork& work, size_t offset, uint32_t rank,
                                   uint64_t rounds, WaitPhase phase) {
  const Bytes16 expected = work.word_of(rounds);
  const Peer<Bytes16> at = work.near_word(work.call.rank, offset);
  Awaited what{.phase = static_cast<uint32_t>(phase),
               .rank = work.call.empty.slot_of(rank),
               .expected = rounds};
  return wait_until(work.deadlines.host, what, [&] {
    const Bytes16 word = load<Order::relaxed, Scope::sys>(at);
    const bool is_of_call = word.word[0] == expected.word[0] && word.word[1] == expected.word[1];
    what.seen = is_of_call ? word.word[2] | uint64_t{word.word[3]} << 32 : 0;
    return what.seen >= rounds;
  });
}

/// This rank's end of a link, in a channel. Its words are called by one thread, but for the
/// addresses.
class LinkEnd {
 public:
  TOKENYARD_DEVICE LinkEnd(const BetweenWork& work, uint32_t channel, uint32_t number)
      : work_(work),
        params_(work.params),
        link_(work.params.links[number]),
        counts_(work.params.counts[channel * work.params.link_count + number]),
        channel_(channel),
        number_(number) {}

  TOKENYARD_DEVICE uint32_t rank() const { return link_.rank; }

  /// Sends the call word alone.
  TOKENYARD_DEVICE bool greet() const {
    const CallWord word = work_.word();
    const Deadline& deadline = work_.deadlines.words;
    return queue().put_inline_and_signal(deadline, phase(WaitPhase::greeting_put), greeting_there(),
                                         &word, sizeof(word), there(far().greeted(link_.there)), 1);
  }
  /// Waits for the peer's greeting and returns its call word; one of no call if the wait failed.
  TOKENYARD_DEVICE CallWord await_greeting() const {
    const auto* const greeted = mine<uint64_t>(far().greeted(number_));
    if (!await_signal(work_.deadlines.words, phase(WaitPhase::greeting), link_.slot, greeted,
                      work_.epoch - params_.first_epoch))
      return {};
    return {load<Order::relaxed, Scope::sys>(mine<Bytes16>(greeting_here()))};
  }
  /// Returns where the network reads what travels with the greeting.
  TOKENYARD_DEVICE Peer<std::byte> greeting_stage() const {
    return Peer<std::byte>(params_.far_window + far().greeting_out(number_) + sizeof(CallWord));
  }
  /// Returns what has come with the peer's greeting.
  TOKENYARD_DEVICE Peer<const std::byte> greeting_data() const {
    return Peer<const std::byte>(params_.far_window + greeting_here() + sizeof(CallWord));
  }
  /// Sends the call word with so many bytes of that stage.
  TOKENYARD_DEVICE bool greet_with(uint32_t bytes) const {
    store_vector(
        Peer<Bytes16>(reinterpret_cast<Bytes16*>(params_.far_window + far().greeting_out(number_))),
        work_.word().bits);
    const NetworkSource from =
        source(far().greeting_out(number_), static_cast<uint32_t>(sizeof(CallWord)) + bytes);
    return queue().put_and_signal(work_.deadlines.words, phase(WaitPhase::greeting_put),
                                  greeting_there(), from, there(far().greeted(link_.there)), 1);
  }
  /// Waits until the peer makes the same call. Returns false, too, if it makes another one: the
  /// warp that compares the calls of all ranks raises that.
  TOKENYARD_DEVICE bool await_same_call() const {
    const CallWord theirs = await_greeting();
    // Mutant: chunks of another call are read.
    return theirs.is_of(work_.epoch) && (theirs.signature() == work_.call.signature || mutated());
  }

  // Outgoing chunks.

  /// Waits until this round's places are free, here and at the peer.
  TOKENYARD_DEVICE bool reserve(uint64_t round, uint32_t chunks) const {
    if (params_.with_greeting) return true;
    const Deadline& deadline = work_.deadlines.links;
    if (!send_ring().reserve(deadline, phase(WaitPhase::credits), chunks)) return false;
    if (round < kLinkRounds) return true;
    const uint32_t number = counts_.numbers[round % kLinkRounds];
    Awaited what{.phase = phase(WaitPhase::stage), .rank = link_.slot, .expected = number};
    // Mutant: the stage is written before the network has read it.
    return mutated() || wait_until(deadline, what, [&] { return queue().has_read(number); });
  }
  /// Returns where the network reads a chunk of this round.
  TOKENYARD_DEVICE Peer<std::byte> stage(uint32_t chunk) const {
    return Peer<std::byte>(params_.far_window + stage_at(chunk));
  }
  /// Returns whether the network reads the only chunk from its request, so that none is staged.
  TOKENYARD_DEVICE bool is_inline(uint32_t chunks) const {
    return params_.with_greeting && chunks == 1 && params_.chunk_bytes <= kInlineMax;
  }
  /// Sends a round's chunks, of which `bytes_of(chunk)` are in the stage; the only chunk is at
  /// `only` instead if it `is_inline`.
  template <class BytesOf>
  TOKENYARD_DEVICE bool publish(uint64_t round, uint32_t chunks, const std::byte* only,
                                BytesOf bytes_of) const {
    if (params_.with_greeting) return publish_greeting(chunks, only, bytes_of);
    const Deadline& deadline = work_.deadlines.links;
    const SendRing ring = send_ring();
    for (uint32_t chunk = 0; chunk + 1 < chunks; ++chunk) {
      const uint32_t bytes = bytes_of(chunk);
      if (bytes > 0 && !queue().put(deadline, phase(WaitPhase::put), ring.slot(chunk),
                                    source(stage_at(chunk), bytes)))
        return false;
    }
    // The last chunk travels with the signal of all. An empty one has nothing to travel.
    const uint32_t last = chunks == 0 ? 0 : bytes_of(chunks - 1);
    const NetworkTarget to = ring.slot(chunks - 1);
    const NetworkSource from = source(stage_at(chunks - 1), last);
    *ring.sent += chunks;
    const bool posted = last == 0
                            ? queue().signal(deadline, phase(WaitPhase::put), ring.arrived, chunks)
                            : queue().put_and_signal(deadline, phase(WaitPhase::put), to, from,
                                                     ring.arrived, chunks);
    if (!posted) return false;
    counts_.numbers[round % kLinkRounds] = queue().posted();
    return true;
  }
  /// Waits until the network has read what this call has sent here, in rounds of so many chunks.
  TOKENYARD_DEVICE bool flush(uint32_t chunks) const { return is_inline(chunks) || flush(); }
  TOKENYARD_DEVICE bool flush() const {
    return queue().flush(work_.deadlines.links, phase(WaitPhase::stage));
  }

  // Incoming chunks.

  TOKENYARD_DEVICE bool await(uint64_t round, uint32_t chunks) const {
    if (round == 0 && !await_same_call()) return false;
    return params_.with_greeting ||
           receive_ring().await(work_.deadlines.links, phase(WaitPhase::link_chunk), chunks);
  }
  TOKENYARD_DEVICE Peer<const std::byte> chunk(uint32_t chunk) const {
    const std::byte* const at = params_.with_greeting ? params_.far_window + greeting_here() +
                                                            sizeof(CallWord) + chunk * stride()
                                                      : receive_ring().slot(chunk);
    return Peer<const std::byte>(at);
  }
  TOKENYARD_DEVICE bool release(uint32_t chunks) const {
    return params_.with_greeting ||
           receive_ring().release(work_.deadlines.links, phase(WaitPhase::credits), chunks);
  }

 private:
  /// Bytes that fit into an inline put behind the call word.
  static constexpr uint32_t kInlineMax = kNetworkInlineMax - sizeof(CallWord);

  TOKENYARD_DEVICE static uint32_t phase(WaitPhase of) { return static_cast<uint32_t>(of); }
  TOKENYARD_DEVICE const LinkWindow& far() const { return params_.far; }
  TOKENYARD_DEVICE NetworkQueue queue() const {
    return params_.queues.of(link_.slot, params_.queue_of[channel_]);
  }
  TOKENYARD_DEVICE NetworkTarget there(size_t offset) const { return link_.window + offset; }
  template <class T>
  TOKENYARD_DEVICE const T* mine(size_t offset) const {
    return reinterpret_cast<const T*>(params_.far_window + offset);
  }
  TOKENYARD_DEVICE NetworkSource source(size_t offset, uint32_t bytes) const {
    return {.key = params_.key, .bytes = bytes, .from = params_.far_window + offset};
  }
  TOKENYARD_DEVICE size_t greeting_here() const { return far().greeting_in(number_, work_.parity); }
  TOKENYARD_DEVICE NetworkTarget greeting_there() const {
    return there(far().greeting_in(link_.there, work_.parity));
  }
  /// Bytes from one chunk of a greeting to the next.
  TOKENYARD_DEVICE uint32_t stride() const { return (params_.chunk_bytes + 15) / 16 * 16; }
  TOKENYARD_DEVICE size_t stage_at(uint32_t chunk) const {
    if (params_.with_greeting)
      return far().greeting_out(number_) + sizeof(CallWord) + size_t{chunk} * stride();
    return far().stage(number_, channel_) +
           (counts_.sent + chunk) % far().capacity * far().slot_bytes;
  }
  TOKENYARD_DEVICE SendRing send_ring() const {
    return {.queue = queue(),
            .slots = there(far().ring(link_.there, channel_)),
            .arrived = there(far().arrived(link_.there, channel_)),
            .credited = mine<uint64_t>(far().credited(number_, channel_)),
            .sent = &counts_.sent,
            .rank = link_.slot,
            .capacity = far().capacity,
            .slot_bytes = far().slot_bytes};
  }
  TOKENYARD_DEVICE ReceiveRing receive_ring() const {
    return {.queue = queue(),
            .credited = there(far().credited(link_.there, channel_)),
            .slots = params_.far_window + far().ring(number_, channel_),
            .arrived = mine<uint64_t>(far().arrived(number_, channel_)),
            .taken = &counts_.taken,
            .rank = link_.slot,
            .capacity = far().capacity,
            .slot_bytes = far().slot_bytes};
  }

  /// Sends the call word with the chunks behind it.
  template <class BytesOf>
  TOKENYARD_DEVICE bool publish_greeting(uint32_t chunks, const std::byte* only,
                                         BytesOf bytes_of) const {
    if (chunks == 0) return greet();
    const uint32_t bytes = sizeof(CallWord) + (chunks - 1) * stride() + bytes_of(chunks - 1);
    if (is_inline(chunks)) {
      const Deadline& deadline = work_.deadlines.words;
      const uint32_t data = bytes_of(0);  // A message may end before.
      const Bytes16 both[2] = {
          work_.word().bits,
          data == 0 ? Bytes16{} : std::bit_cast<Bytes16>(load_piece<4>(only, data))};
      return queue().put_inline_and_signal(deadline, phase(WaitPhase::greeting_put),
                                           greeting_there(), both, bytes,
                                           there(far().greeted(link_.there)), 1);
    }
    return greet_with(bytes - static_cast<uint32_t>(sizeof(CallWord)));
  }

  const BetweenWork& work_;
  const BetweenHostsParams& params_;
  const HostLink& link_;
  LinkCounts& counts_;
  const uint32_t channel_, number_;
};

}  // namespace tokenyard::device_collectives
