/// The kernel of messages between hosts. See messages_between_hosts.hpp.
#pragma once

#include "collectives/device/kernels/host_steps_kernel.hpp"
#include "collectives/device/kernels/messages_between_hosts.hpp"
#include "collectives/device/kernels/serve_messages_kernel.hpp"

namespace tokenyard::device_collectives {

struct MessagesBetweenShared : BetweenShared {
  uint32_t found;                ///< message whose next chunk moves, or kNoMessage
  uint64_t moved[kMessagesMax];  ///< chunks of each message
};

/// The messages of a block with ranks of other hosts. Its words are called by the first thread,
/// unless they say otherwise.
class FarMessages {
 public:
  TOKENYARD_DEVICE FarMessages(const MessagesBetweenParams& params, const BlockDeadline& deadline,
                               MessagesBetweenShared& shared)
      : params_(params),
        deadline_(deadline),
        queue_deadline_(params.all.call.wait_context.start()),
        shared_(shared) {}

  /// Every launch finds all that was posted before it read.
  TOKENYARD_DEVICE void begin() const {
    for_links([&](uint32_t link) {
      for (uint32_t& number : counts(link).numbers) number = queue(link).posted();
      return true;
    });
  }
  /// Waits for a message that can go on, and returns it. Returns kNoMessage if all are done, or the
  /// wait has failed: `goes_on` says which.
  TOKENYARD_DEVICE uint32_t await(bool& goes_on) {
    goes_on = true;
    if (all_done()) return kNoMessage;
    uint32_t found = kNoMessage;
    Awaited what{};
    goes_on = wait_until(deadline_, what, [&] {
      bool is_first = true;
      for (uint32_t turn = 0; turn < params_.far_count; ++turn) {
        const uint32_t i = (last_ + 1 + turn) % params_.far_count;
        if (!is_next(i)) continue;
        WaitPhase phase{};
        found = i;
        if (is_ready(i, phase)) return true;
        if (is_first)
          what = {.phase = static_cast<uint32_t>(phase),
                  .rank = message(i).peer,
                  .expected = shared_.moved[i]};
        is_first = false;
      }
      return false;
    });
    if (goes_on) last_ = found;
    goes_on = goes_on && is_awaited(found);
    return goes_on ? found : kNoMessage;
  }
  /// Copies the next chunk of a message. Called by all movers.
  TOKENYARD_DEVICE void copy(uint32_t i, Movers& movers) const {
    const Message& of = message(i);
    const uint64_t at = shared_.moved[i] * of.chunk_bytes;
    const Peer<std::byte> place = data_of(of.receives ? slot_here(of.first) : stage_of(of.first));
    if (of.receives)
      movers.copy(Peer<const std::byte>(place.address()), of.data + at, bytes_of(i));
    else
      movers.copy(static_cast<const std::byte*>(of.data + at), place, bytes_of(i));
  }
  /// Tells the peer, once all movers have copied the chunk.
  TOKENYARD_DEVICE bool publish(uint32_t i) {
    const Message& of = message(i);
    const auto link = static_cast<uint32_t>(of.first);
    const uint32_t bytes = bytes_of(i);
    LinkCounts& count = counts(link);
    const uint64_t number = shared_.moved[i]++;
    if (of.receives)
      return receive_ring(link).release(queue_deadline_, phase(WaitPhase::credits), 1);
    std::byte* const stage = stage_of(link);
    store_vector(Peer<Bytes16>(reinterpret_cast<Bytes16*>(stage)), header_of(i, number));
    const uint32_t round = count.sent % kLinkRounds;
    const bool posted = send_ring(link).send(
        queue_deadline_, phase(WaitPhase::put), 1,
        {.key = params_.key, .bytes = MessageWindow::kHeaderBytes + bytes, .from = stage});
    count.numbers[round] = queue(link).posted();
    return posted;
  }
  TOKENYARD_DEVICE bool flush() const {
    return for_links(
        [&](uint32_t link) { return queue(link).flush(queue_deadline_, phase(WaitPhase::stage)); });
  }

 private:
  TOKENYARD_DEVICE static uint32_t phase(WaitPhase of) { return static_cast<uint32_t>(of); }
  TOKENYARD_DEVICE const Message& message(uint32_t i) const {
    return params_.all.messages[params_.all.count + i];
  }
  TOKENYARD_DEVICE bool is_served_here(uint32_t i) const {
    return message(i).first % (grid::blocks() - params_.near_blocks) ==
           block::index() - params_.near_blocks;
  }
  TOKENYARD_DEVICE bool is_done(uint32_t i) const {
    return shared_.moved[i] == message(i).chunks(false);
  }
  TOKENYARD_DEVICE bool all_done() const {
    for (uint32_t i = 0; i < params_.far_count; ++i)
      if (is_served_here(i) && !is_done(i)) return false;
    return true;
  }
  /// Returns whether a message is the next one of its link and direction.
  TOKENYARD_DEVICE bool is_next(uint32_t i) const {
    if (!is_served_here(i) || is_done(i)) return false;
    if (i == 0) return true;
    const Message &of = message(i), &before = message(i - 1);
    return before.first != of.first || before.receives != of.receives || is_done(i - 1);
  }
  TOKENYARD_DEVICE bool is_ready(uint32_t i, WaitPhase& phase) const {
    const Message& of = message(i);
    const auto link = static_cast<uint32_t>(of.first);
    const LinkCounts& count = counts(link);
    if (of.receives) {
      phase = WaitPhase::link_chunk;
      return load<Order::acquire, Scope::sys>(mine<uint64_t>(params_.far.arrived(link))) >
             count.taken;
    }
    phase = WaitPhase::credits;
    if (send_ring(link).free_slots() == 0) return false;
    phase = WaitPhase::stage;
    // Mutant: the stage is written before the network has read it.
    return mutated() || queue(link).has_read(count.numbers[count.sent % kLinkRounds]);
  }
  /// Returns whether the chunk that has come is of the awaited message; refuses another one.
  TOKENYARD_DEVICE bool is_awaited(uint32_t i) const {
    const Message& of = message(i);
    if (!of.receives) return true;
    const Bytes16 seen =
        load_vector(Peer<const Bytes16>(reinterpret_cast<const Bytes16*>(slot_here(of.first))));
    const Bytes16 expected = header_of(i, shared_.moved[i]);
    const auto description = [](const Bytes16& header) {
      return uint64_t{header.word[2]} << 32 | header.word[3];
    };
    if (seen.word[0] == expected.word[0] && seen.word[1] == expected.word[1] &&
        description(seen) == description(expected))
      return true;
    refuse_message(deadline_, of.peer, description(expected), description(seen));
    return false;
  }
  /// Returns what a slot says of a chunk of a message.
  TOKENYARD_DEVICE Bytes16 header_of(uint32_t i, uint64_t number) const {
    const uint64_t description = message(i).description();
    return {{static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32),
             static_cast<uint32_t>(description >> 32), static_cast<uint32_t>(description)}};
  }
  TOKENYARD_DEVICE uint32_t bytes_of(uint32_t i) const {
    const Message& of = message(i);
    const uint64_t at = shared_.moved[i] * of.chunk_bytes;
    return static_cast<uint32_t>(std::min<uint64_t>(of.chunk_bytes, std::max(of.bytes, at) - at));
  }

  TOKENYARD_DEVICE LinkCounts& counts(uint64_t link) const { return params_.counts[link]; }
  TOKENYARD_DEVICE NetworkQueue queue(uint32_t link) const {
    return params_.queues.of(params_.links[link].slot, params_.queue);
  }
  template <class T>
  TOKENYARD_DEVICE const T* mine(size_t offset) const {
    return reinterpret_cast<const T*>(params_.far_window + offset);
  }
  TOKENYARD_DEVICE NetworkTarget there(uint32_t link, size_t offset) const {
    return params_.links[link].window + offset;
  }
  TOKENYARD_DEVICE std::byte* slot_here(uint64_t link) const {
    return params_.far_window + params_.far.ring(static_cast<uint32_t>(link)) +
           counts(link).taken % params_.far.capacity * params_.far.slot_bytes();
  }
  TOKENYARD_DEVICE std::byte* stage_of(uint64_t link) const {
    return params_.far_window + params_.far.stage(static_cast<uint32_t>(link)) +
           counts(link).sent % kLinkRounds * params_.far.slot_bytes();
  }
  TOKENYARD_DEVICE static Peer<std::byte> data_of(std::byte* slot) {
    return Peer<std::byte>(slot + MessageWindow::kHeaderBytes);
  }
  TOKENYARD_DEVICE SendRing send_ring(uint32_t link) const {
    const HostLink& to = params_.links[link];
    return {.queue = queue(link),
            .slots = there(link, params_.far.ring(to.there)),
            .arrived = there(link, params_.far.arrived(to.there)),
            .credited = mine<uint64_t>(params_.far.credited(link)),
            .sent = &counts(link).sent,
            .rank = to.slot,
            .capacity = params_.far.capacity,
            .slot_bytes = params_.far.slot_bytes()};
  }
  TOKENYARD_DEVICE ReceiveRing receive_ring(uint32_t link) const {
    const HostLink& from = params_.links[link];
    return {.queue = queue(link),
            .credited = there(link, params_.far.credited(from.there)),
            .slots = params_.far_window + params_.far.ring(link),
            .arrived = mine<uint64_t>(params_.far.arrived(link)),
            .taken = &counts(link).taken,
            .rank = from.slot,
            .capacity = params_.far.capacity,
            .slot_bytes = params_.far.slot_bytes()};
  }
  /// Calls `body(link)` once for each link of this block's messages. Returns whether all did.
  template <class Body>
  TOKENYARD_DEVICE bool for_links(Body body) const {
    bool all = true;
    for (uint32_t i = 0; i < params_.far_count; ++i) {
      const bool is_first = i == 0 || message(i - 1).first != message(i).first;
      if (is_first && is_served_here(i)) all = body(static_cast<uint32_t>(message(i).first)) && all;
    }
    return all;
  }

  const MessagesBetweenParams& params_;
  const BlockDeadline& deadline_;
  const Deadline queue_deadline_;
  MessagesBetweenShared& shared_;
  uint32_t last_ = 0;
};

/// Serves this block's messages with ranks of other hosts. Called by all movers.
TOKENYARD_DEVICE void serve_far(const MessagesBetweenParams& params, const BlockDeadline& deadline,
                                MessagesBetweenShared& shared) {
  Movers movers(shared);
  FarMessages messages(params, deadline, shared);
  const bool leads = thread::index() == 0;
  bool goes_on = true;
  if (leads) messages.begin();
  for (;;) {
    if (leads && goes_on) shared.found = messages.await(goes_on);
    warp::sync();
    if (!movers.meet(goes_on)) return;
    const uint32_t found = shared.found;
    if (found == kNoMessage) break;
    messages.copy(found, movers);
    if (!movers.meet(true)) return;
    if (leads) goes_on = messages.publish(found);
    warp::sync();
  }
  if (leads) messages.flush();
}

TOKENYARD_DEVICE void exchange_messages_between_hosts(const MessagesBetweenParams& params) {
  auto& shared = block::shared<MessagesBetweenShared>();
  const BlockDeadline deadline = begin_deadline(params.all.call);
  if (thread::index() == 0) shared.stop[0] = shared.stop[1] = 0;
  for (uint32_t i = thread::index(); i < params.far_count; i += block::threads())
    shared.moved[i] = 0;
  if (!begin_messages(params.all, shared, deadline)) return;
  const bool moves = warp::index() + 1 != warp::count();
  if (block::index() >= params.near_blocks) {
    if (moves) serve_far(params, deadline, shared);
    return;
  }
  const MessagesWork work = MessagesWork::of(params.all, deadline, 0);
  ServedMessages served{};
  if (moves) served = served_messages(params.all, params.near_blocks);
  block::sync();
  if (moves) return serve_messages(work, served);
  advance_counters(params.all, params.near_blocks);
}

TOKENYARD_DEFINE_KERNEL(messages_between_hosts_kernel, exchange_messages_between_hosts,
                        MessagesBetweenParams, MessagesBetweenShared, kMessagesThreadsMax)

}  // namespace tokenyard::device_collectives
