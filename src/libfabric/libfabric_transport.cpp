#include "libfabric/libfabric_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/little_endian.hpp"
#include "net/protocol_error.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::libfabric {

namespace {

/// Messages that return nothing but credits.
constexpr uint32_t kCreditMessages = 2;
// Bits of the number that a write tells its target.
constexpr uint32_t kGroupBits = 8, kQueueBits = 10;

}  // namespace

Order order_of(const Provider::Facts& facts) {
  if (facts.ordered) return Order::promised;
  return facts.tells_data ? Order::counted : Order::delivered;
}

LibfabricTransport::LibfabricTransport(std::unique_ptr<Provider> provider, Options options)
    : place_(options.place),
      token_(options.own.token),
      granted_(options.own.credits),
      peers_(options.peers.size()),
      provider_(std::move(provider)),
      order_(order_of(provider_->facts())) {
  if (order_ == Order::counted && place_.ranks > 1u << (32 - kGroupBits - kQueueBits))
    order_ = Order::delivered;
  uint32_t sends = 0, receives = 0;
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    const auto& card = options.peers[rank];
    if (!card) continue;
    peers_[rank] = std::make_unique<Peer>();
    Peer& peer = *peers_[rank];
    peer.rank = rank;
    peer.address = provider_->insert(card->address);
    peer.token = card->token;
    peer.credits = peer.credits_max = card->credits - kCreditMessages;
    peer.credits_for_credits = kCreditMessages;
    peer.queues.resize(place_.queues);
    peer.inbox = std::make_unique<PeerInbox>(
        PeerInbox::Options{.peer = rank, .queues = place_.queues, .credits = options.own.credits},
        regions_, static_cast<InboxListener&>(*this));
    peer.facts = &facts_.emplace_back();
    peer.facts->rank = rank;
    peer.moved = awake_.now();
    sends += card->credits;
    receives += options.own.credits;
  }
  buffers_.resize(std::max(sends + receives, 1u));
  const auto slab = std::as_writable_bytes(std::span(buffers_));
  buffers_region_ = provider_->register_memory(slab, false);
  for (size_t index = 0; index < size_t{sends} + receives; ++index) {
    const std::span<std::byte> buffer(buffers_[index]);
    if (index < sends) {
      Sending& sending = sendings_.emplace_back();
      sending.kind = Operation::Kind::send;
      sending.buffer = buffer;
      idle_sendings_.push_back(&sending);
    } else {
      Receiving& receiving = receivings_.emplace_back();
      receiving.kind = Operation::Kind::receive;
      receiving.buffer = buffer;
      idle_receivings_.push_back(&receiving);
    }
  }
  for (const auto& peer : peers_)
    if (peer) enqueue(*peer, {.kind = MessageKind::hello});
}

LibfabricTransport::~LibfabricTransport() {
  provider_->stop();
  closing_.clear();
  for (auto& region : registered_) region.reset();
  buffers_region_.reset();
}

bool LibfabricTransport::post(const PostedRequest& request) {
  Peer& peer = *peers_[request.peer];
  if (peer.broken || peer.left || peer.messages.size() + peer.parts >= kQueuedMax) return false;
  Message message{.queue = static_cast<uint16_t>(request.queue),
                  .key = request.target.key,
                  .offset = request.target.offset};
  switch (request.kind) {
    case NetworkRequest::Kind::put:
      return post_put(peer, request);
    case NetworkRequest::Kind::put_inline:
      message.kind = MessageKind::put_inline;
      message.inline_bytes = static_cast<uint8_t>(request.pieces[0].size());
      std::ranges::copy(request.pieces[0], message.inlined.begin());
      enqueue(peer, message, 0, request.turn);
      break;
    case NetworkRequest::Kind::signal:
      message.kind = MessageKind::signal;
      message.addend = request.addend;
      end_group(peer, message);
      enqueue(peer, message, peer.queues[request.queue].accepted, request.turn);
      break;
  }
  return true;
}

void LibfabricTransport::end_group(Peer& peer, Message& message) {
  if (order_ != Order::counted) return;
  Queue& queue = peer.queues[message.queue];
  message.group = queue.group;
  message.puts = queue.in_group;
  queue.group = (queue.group + 1) % kGroups;
  queue.in_group = 0;
}

bool LibfabricTransport::post_put(Peer& peer, const PostedRequest& request) {
  const uint64_t whole = request.bytes();
  if (whole == 0) {
    empty_.push_back({request.peer, request.queue, request.turn});
    return true;
  }
  const MemoryKey key = request.target.key;
  const Remote* const remote = resolve(peer, request.queue, key);
  if (remote == nullptr) return false;
  if (!lies_within(request.target.offset, whole, remote->bytes)) {
    listener_->refused(peer.rank, request.queue, NetworkCheck::target_range,
                       {.region = region_of_key(key),
                        .expected = remote->bytes,
                        .seen = request.target.offset + whole});
    return false;
  }
  Queue& queue = peer.queues[request.queue];
  const Provider::Facts& facts = provider_->facts();
  const uint64_t most = std::min<uint64_t>(kPartBytes, facts.message_max);
  const auto add = [&](std::array<std::span<const std::byte>, 2> pieces, uint64_t offset) {
    queue.parts.push_back({.pieces = pieces,
                           .target = request.target.offset + offset,
                           .key = key,
                           .turn = request.turn,
                           .group = queue.group});
    ++queue.accepted;
    ++queue.in_group;
    ++queue.unwritten[request.turn % kSlots];
    ++peer.parts;
  };
  if (!peer.busy()) peer.moved = awake_.now();
  const auto& [first, second] = request.pieces;
  if (whole <= most && facts.pieces_max >= 2) {
    add(request.pieces, 0);
    return true;
  }
  uint64_t offset = 0;
  for (const auto& piece : {first, second}) {
    for (uint64_t begin = 0; begin < piece.size(); begin += most) {
      const auto part = piece.subspan(begin, std::min<uint64_t>(most, piece.size() - begin));
      add({part, {}}, offset + begin);
    }
    offset += piece.size();
  }
  return true;
}

bool LibfabricTransport::settle(uint32_t rank, uint32_t queue, uint32_t turn) {
  Peer& peer = *peers_[rank];
  if (peer.broken || peer.left) return false;
  Message message{.kind = MessageKind::settle, .queue = static_cast<uint16_t>(queue), .turn = turn};
  end_group(peer, message);
  enqueue(peer, message, peer.queues[queue].accepted);
  return true;
}

void LibfabricTransport::enqueue(Peer& peer, const Message& message, uint32_t after,
                                 std::optional<uint32_t> turn, bool is_answer) {
  if (peer.broken || peer.left) return;
  if (is_answer && ++peer.answers > kAnswersMax)
    throw net::ProtocolError("asks and does not read the answers");
  if (!peer.busy()) peer.moved = awake_.now();
  peer.messages.push_back(
      {.message = message, .after = after, .turn = turn, .is_answer = is_answer});
}

bool LibfabricTransport::poll() {
  const TimePoint now = Clock::now();
  awake_.tick(now);
  if (now - last_look_ >= kLookAtPeers) {
    last_look_ = now;
    look_at_peers();
  }
  bool moved = !empty_.empty();
  for (const Done& done : std::exchange(empty_, {}))
    listener_->completed(done.peer, done.queue, done.turn);
  while (!idle_receivings_.empty()) {
    Receiving& receiving = *idle_receivings_.back();
    const Posted posted = provider_->receive(receiving.buffer, *buffers_region_, receiving);
    if (posted == Posted::failed) throw OsError("libfabric", 0, provider_->why());
    if (posted == Posted::full) break;
    idle_receivings_.pop_back();
  }
  for (const auto& peer : peers_)
    if (peer && ((!peer->broken && !peer->left) || !peer->messages.empty())) moved |= pump(*peer);
  std::array<Completion, kAtOnce> completions;
  const size_t count = provider_->poll(completions);
  for (size_t index = 0; index < count; ++index) finish(completions[index]);
  return moved || count != 0;
}

bool LibfabricTransport::pump(Peer& peer) {
  bool moved = pump_writes(peer);
  for (auto each = peer.messages.begin(); each != peer.messages.end() && peer.credits != 0;) {
    if (!is_due(peer, *each)) {
      ++each;
      continue;
    }
    if (!send(peer, each->message, each->turn)) break;  // The peer may have been broken off.
    if (each->is_answer) --peer.answers;
    each = peer.messages.erase(each);
    moved = true;
  }
  if (!peer.broken && !peer.left) return_credits(peer);
  return moved;
}

bool LibfabricTransport::is_due(const Peer& peer, const Waiting& waiting) const {
  const Queue& queue = peer.queues[waiting.message.queue];
  if (waiting.after == 0 || order_ == Order::counted) return true;
  const uint32_t before = order_ == Order::promised ? queue.posted : queue.done;
  return static_cast<int32_t>(before - waiting.after) >= 0;
}

bool LibfabricTransport::send(Peer& peer, Message message, std::optional<uint32_t> turn) {
  if (idle_sendings_.empty()) return false;
  Sending& sending = *idle_sendings_.back();
  message.rank = place_.rank;
  message.token = peer.token;
  message.sequence = peer.sequence;
  message.credits = static_cast<uint16_t>(peer.owed);
  message.credits_for_credits = static_cast<uint16_t>(peer.owed_for_credits);
  std::ranges::copy(encode(message), sending.buffer.begin());
  sending.peer = peer.rank;
  sending.queue = message.queue;
  sending.turn = turn;
  const Posted posted =
      provider_->send(peer.address, sending.buffer.first(kMessageBytes), *buffers_region_, sending);
  if (posted == Posted::full) return false;
  if (posted == Posted::failed) {
    break_off(peer, provider_->why());
    return false;
  }
  idle_sendings_.pop_back();
  ++peer.sequence;
  --(message.kind == MessageKind::credit ? peer.credits_for_credits : peer.credits);
  peer.owed = peer.owed_for_credits = 0;
  ++peer.sends;
  peer.facts->bytes.fetch_add(kMessageBytes, std::memory_order_relaxed);
  switch (message.kind) {
    case MessageKind::probe:
    case MessageKind::echo:
    case MessageKind::credit:
      break;
    case MessageKind::given_up:
      peer.said_goodbye = true;
      break;
    default:
      peer.unanswered = true;
  }
  return true;
}

void LibfabricTransport::return_credits(Peer& peer) {
  if (peer.owed < (granted_ - kCreditMessages) / 2 || peer.credits_for_credits == 0) return;
  (void)send(peer, {.kind = MessageKind::credit}, {});
}

bool LibfabricTransport::pump_writes(Peer& peer) {
  bool moved = false;
  const auto queues = static_cast<uint32_t>(peer.queues.size());
  for (uint32_t idle = 0; idle < queues && peer.writes < kWritesMax && peer.parts != 0;) {
    const uint32_t queue = peer.next_queue;
    if (peer.queues[queue].parts.empty()) {
      ++idle;
    } else if (write(peer, queue)) {
      idle = 0;
      moved = true;
    } else {
      break;  // The peer may have been broken off.
    }
    peer.next_queue = (queue + 1) % queues;
  }
  return moved;
}

bool LibfabricTransport::write(Peer& peer, uint32_t number) {
  Queue& queue = peer.queues[number];
  const Part& part = queue.parts.front();
  if (part.skipped) {
    skip(peer, number);
    return true;
  }
  Remote& remote = peer.remotes.at(part.key);
  if (idle_writings_.empty()) {
    idle_writings_.push_back(&writings_.emplace_back());
    idle_writings_.back()->kind = Operation::Kind::write;
  }
  Writing& writing = *idle_writings_.back();
  writing.peer = peer.rank;
  writing.queue = number;
  writing.turn = part.turn;
  writing.number = queue.posted;
  writing.key = part.key;
  writing.reported = true;
  Provider::Write write{.pieces = part.pieces,
                        .regions = {},
                        .target = remote.base + part.target,
                        .key = remote.key,
                        .data = {},
                        .delivered = order_ == Order::delivered};
  for (size_t piece = 0; piece < part.pieces.size(); ++piece) {
    const uint32_t region = part.pieces[piece].empty() ? 0 : region_with(part.pieces[piece]);
    writing.regions[piece] = region;
    write.regions[piece] = region == 0 ? nullptr : registered_[region - 1].get();
  }
  if (order_ == Order::counted)
    write.data = place_.rank << (kGroupBits + kQueueBits) | number << kGroupBits | part.group;
  const Posted posted = provider_->write(peer.address, write, writing);
  if (posted == Posted::full) return false;
  if (posted == Posted::failed) {
    break_off(peer, provider_->why());
    return false;
  }
  idle_writings_.pop_back();
  writing.under_way = true;
  for (const uint32_t region : writing.regions)
    if (region != 0) ++readers_[region - 1];
  peer.facts->bytes.fetch_add(part.pieces[0].size() + part.pieces[1].size(),
                              std::memory_order_relaxed);
  peer.unanswered = true;
  ++remote.writes;
  ++peer.writes;
  ++queue.posted;
  --peer.parts;
  queue.parts.pop_front();
  return true;
}

/// The first part of a queue goes nowhere: its region was withdrawn.
void LibfabricTransport::skip(Peer& peer, uint32_t number) {
  Queue& queue = peer.queues[number];
  const Part part = queue.parts.front();
  queue.parts.pop_front();
  --peer.parts;
  if (order_ == Order::counted) {
    enqueue(peer, {.kind = MessageKind::skipped,
                   .queue = static_cast<uint16_t>(number),
                   .turn = 1,
                   .group = part.group});
  }
  mark_done(peer, number, queue.posted++, part.turn);
}

void LibfabricTransport::mark_done(Peer& peer, uint32_t number, uint32_t write, uint32_t turn) {
  Queue& queue = peer.queues[number];
  const uint32_t ahead = write - queue.done;
  if (queue.done_early.size() <= ahead) queue.done_early.resize(ahead + 1);
  queue.done_early[ahead] = true;
  while (!queue.done_early.empty() && queue.done_early.front()) {
    queue.done_early.pop_front();
    ++queue.done;
  }
  if (--queue.unwritten[turn % kSlots] == 0) listener_->completed(peer.rank, number, turn);
}

void LibfabricTransport::finish(const Completion& completion) {
  Operation* const operation = completion.operation;
  if (operation == nullptr) {
    // An error of nothing that this rank has posted is its peer's to notice.
    if (completion.error == 0) landed(completion.data);
    return;
  }
  if (operation->kind == Operation::Kind::receive) {
    auto& receiving = static_cast<Receiving&>(*operation);
    if (completion.error == 0) {
      received(receiving, completion.bytes);
    } else {
      ++unknown_;  // A member's messages fit.
    }
    idle_receivings_.push_back(&receiving);
    return;
  }
  if (Peer* const peer = peer_of(operation->peer); completion.error == 0 && peer != nullptr)
    peer->moved = awake_.now();
  if (operation->kind == Operation::Kind::send) {
    finished(static_cast<Sending&>(*operation), completion.error);
  } else {
    finished(static_cast<Writing&>(*operation), completion.error);
  }
}

void LibfabricTransport::finished(Sending& sending, int error) {
  Peer& peer = *peers_[sending.peer];
  --peer.sends;
  idle_sendings_.push_back(&sending);
  if (peer.broken || peer.left) return;
  if (error != 0)
    return break_off(peer, fmt::format("a message to it failed: {}", provider_->why()));
  if (sending.turn) listener_->completed(peer.rank, *sending.queue, *sending.turn);
}

void LibfabricTransport::finished(Writing& writing, int error) {
  Peer& peer = *peers_[writing.peer];
  --peer.writes;
  writing.under_way = false;
  idle_writings_.push_back(&writing);
  for (const uint32_t region : writing.regions)
    if (region != 0) --readers_[region - 1];
  if (peer.broken || peer.left || !writing.reported) return;
  if (error != 0) return break_off(peer, fmt::format("a put to it failed: {}", provider_->why()));
  const auto remote = peer.remotes.find(writing.key);
  if (remote != peer.remotes.end() && --remote->second.writes == 0 && remote->second.released)
    release(peer, writing.key);
  mark_done(peer, writing.queue, writing.number, writing.turn);
}

void LibfabricTransport::received(Receiving& receiving, size_t bytes) {
  const std::span<const std::byte> buffer(receiving.buffer);
  std::span<const std::byte> token = buffer, rank = buffer.subspan(12);
  Peer* const peer = bytes == kMessageBytes && take_number<uint64_t>(token) == token_
                         ? peer_of(take_number<uint32_t>(rank))
                         : nullptr;
  if (peer == nullptr) {
    ++unknown_;
    return;
  }
  peer->moved = awake_.now();
  if (peer->deaf) return;
  try {
    const Message message = decode_message(buffer.first<kMessageBytes>());
    if (message.kind == MessageKind::credit) ++peer->owed_for_credits;
    peer->credits += message.credits;
    peer->credits_for_credits += message.credits_for_credits;
    if (peer->credits > peer->credits_max || peer->credits_for_credits > kCreditMessages)
      throw net::ProtocolError("returns more credits than it had");
    peer->inbox->receive(message);
  } catch (const net::ProtocolError& error) {
    break_off(*peer, fmt::format("it {}", error.what()));
  }
}

void LibfabricTransport::landed(uint32_t data) {
  Peer* const peer = peer_of(data >> (kGroupBits + kQueueBits));
  if (peer == nullptr) {
    ++unknown_;
    return;
  }
  peer->moved = awake_.now();
  if (peer->deaf) return;
  try {
    peer->inbox->landed(data >> kGroupBits & ((1u << kQueueBits) - 1),
                        data & ((1u << kGroupBits) - 1));
  } catch (const net::ProtocolError& error) {
    break_off(*peer, fmt::format("it {}", error.what()));
  }
}

void LibfabricTransport::credited(uint32_t peer) {
  ++peers_[peer]->owed;
}

void LibfabricTransport::refuse(uint32_t rank, uint32_t queue, NetworkCheck check,
                                const NetworkRefusal& refusal) {
  enqueue(*peers_[rank],
          {.kind = MessageKind::refusal,
           .queue = static_cast<uint16_t>(queue),
           .check = check,
           .refusal = refusal},
          0, {}, true);
}

void LibfabricTransport::answer_settled(uint32_t rank, uint32_t queue, uint32_t turn) {
  enqueue(*peers_[rank],
          {.kind = MessageKind::settled, .queue = static_cast<uint16_t>(queue), .turn = turn}, 0,
          {}, true);
}

void LibfabricTransport::take(uint32_t rank, const Message& message) {
  Peer& peer = *peers_[rank];
  switch (message.kind) {
    case MessageKind::hello:
      peer.met = true;
      return;
    case MessageKind::settled:
      return listener_->settled(rank, message.queue, message.turn);
    case MessageKind::refusal:
      return listener_->refused(rank, message.queue, message.check, message.refusal);
    case MessageKind::ask: {
      const uint32_t region = region_of_key(message.key);
      Message answer{.kind = MessageKind::region, .key = message.key};
      if (regions_.find(message.key) != nullptr) {
        answer.base = registered_[region]->base;
        answer.bytes = memory_[region].size();
        answer.provider_key = registered_[region]->key;
        holders_[region].insert(rank);
      }
      return enqueue(peer, answer, 0, {}, true);
    }
    case MessageKind::region: {
      const auto remote = peer.remotes.find(message.key);
      if (remote == peer.remotes.end() || remote->second.state != Remote::State::asked)
        throw net::ProtocolError("tells of memory that nobody asked for");
      remote->second.state = message.bytes == 0 ? Remote::State::none : Remote::State::open;
      remote->second.base = message.base;
      remote->second.bytes = message.bytes;
      remote->second.key = message.provider_key;
      return;
    }
    case MessageKind::withdrawn: {
      const auto remote = peer.remotes.find(message.key);
      if (remote == peer.remotes.end())
        throw net::ProtocolError("withdraws memory that it never told of");
      return stop_writing(peer, message.key, remote->second);
    }
    case MessageKind::probe:
      return enqueue(peer, {.kind = MessageKind::echo}, 0, {}, true);
    case MessageKind::echo:
      peer.probing = false;
      return;
    case MessageKind::given_up:
      // Its earlier messages still take effect.
      stop_sending(peer);
      say_goodbye(peer);
      peer.broken = "it has given this rank up";
      peer.facts->up = false;
      return;
    default:
      return;
  }
}

void LibfabricTransport::sleep(std::chrono::nanoseconds at_most, int waker) {
  const bool looks = std::ranges::any_of(peers_, [](const auto& peer) {
    return peer && !peer->broken && !peer->left && (peer->unanswered || peer->busy());
  });
  if (looks || !closing_.empty())
    at_most = std::min<std::chrono::nanoseconds>(at_most, kLookAtPeers * 10);
  provider_->sleep(at_most, waker);
}

}  // namespace tokenyard::libfabric
