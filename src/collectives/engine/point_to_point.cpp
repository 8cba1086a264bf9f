#include "collectives/engine/point_to_point.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

void check_eager_limit(size_t bytes) {
  if (bytes <= eager_limit_max) return;
  throw InvalidArgument("eager_limit", fmt::format("at most {} bytes", eager_limit_max),
                        fmt::to_string(bytes));
}

PointToPoint::PointToPoint(EngineContext& engine_context, const GroupIdentity& identity)
    : context_(engine_context), identity_(identity), peers_(identity.slots.size()) {
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (const auto member = context_.view.at(identity_.slots[rank])) {
      peers_[rank].incarnation = member->incarnation;
    }
  }
}

void PointToPoint::Peer::note(Number number) {
  above.insert(number);
  while (above.erase(floor + 1) > 0) ++floor;
}

Stream& PointToPoint::stream(uint32_t rank) {
  std::optional<Stream>& stream = peers_[rank].stream;
  if (!stream) {
    stream.emplace(
        context_.transport->channel(identity_.id, Lane::point_to_point, identity_.slots[rank]));
  }
  return *stream;
}

bool PointToPoint::is_active(uint32_t rank) const {
  return context_.view.at(identity_.slots[rank]).has_value();
}

void PointToPoint::finish(const std::shared_ptr<MessageOperation>& operation,
                          std::exception_ptr error) {
  context_.finish(operation, std::move(error));
}

std::shared_ptr<Outcome> PointToPoint::send(ConstArray array, uint32_t to, uint64_t tag,
                                            Instant now, std::chrono::nanoseconds timeout,
                                            size_t eager_limit) {
  auto operation = std::make_shared<MessageOperation>(now, timeout, tag, array.type);
  operation->peer = to;
  if (const std::exception_ptr why = failed_ ? failed_ : leaving_) {
    finish(operation, why);
    return operation;
  }
  if (!is_active(to) && context_.on_failure != OnFailure::retry) {
    finish(operation, lost_error("send", to));
    return operation;
  }
  Peer& peer = peers_[to];
  if (peer.broken) {
    finish(operation, peer.broken);
    return operation;
  }
  Sending sending;
  sending.number = ++peer.last_number;
  sending.content = {static_cast<const std::byte*>(array.data), array.bytes()};
  sending.operation = operation;
  sending.tag = tag;
  sending.type = array.type;
  const size_t bytes = array.bytes();
  sending.eager = eager_limit > 0 && bytes <= eager_limit &&
                  peer.eager_bytes + kept_bytes(bytes) <= eager_bytes_max;
  if (sending.eager) {
    sending.copy.assign(sending.content.begin(), sending.content.end());
    peer.eager_bytes += kept_bytes(bytes);
    finish(std::exchange(sending.operation, nullptr), nullptr);
  }
  Sending& kept = peer.sending.emplace(sending.number, std::move(sending)).first->second;
  if (!context_.frozen && is_active(to)) say(to, kept);
  return operation;
}

std::shared_ptr<Outcome> PointToPoint::receive(Array array, std::optional<uint32_t> from,
                                               uint64_t tag, Instant now,
                                               std::chrono::nanoseconds timeout) {
  auto operation = std::make_shared<MessageOperation>(now, timeout, tag, array.type);
  if (const std::exception_ptr why = failed_ ? failed_ : leaving_) {
    finish(operation, why);
    return operation;
  }
  receiving_.push_back({.operation = operation,
                        .into = {static_cast<std::byte*>(array.data), array.bytes()},
                        .from = from,
                        .accepted = std::nullopt});
  const bool lost = from && !is_active(*from) && context_.on_failure != OnFailure::retry;
  const std::exception_ptr broken = from ? peers_[*from].broken : nullptr;
  match();  // the message may have arrived before its sender was lost
  if ((lost || broken) && !operation->done()) {
    receiving_.remove_if([&](const Receiving& one) { return one.operation == operation; });
    finish(operation, lost ? lost_error("receive", *from) : broken);
  }
  return operation;
}

void PointToPoint::post(uint32_t to, FrameKind kind, Number number, const Sending* sending,
                        std::span<const std::byte> payload) {
  FrameHeader header;
  header.kind = kind;
  header.sequence = number;
  header.bytes = payload.size();
  if (sending != nullptr) {
    header.signature.type = sending->type;
    header.signature.elements = sending->bytes();
    header.signature.lengths = sending->tag;
  }
  stream(to).post(header, payload);
}

void PointToPoint::say(uint32_t to, Sending& sending) {
  sending.flowing = sending.eager;
  if (sending.eager) {
    post(to, FrameKind::eager, sending.number, &sending, sending.copy);
  } else {
    post(to, FrameKind::offer, sending.number, &sending, {});
  }
}

bool PointToPoint::poll(Instant now, Attention attention) {
  if (failed_) return false;
  bool arrived = false, moved = false;
  if (!context_.frozen) {
    for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
      if (rank == identity_.self || !is_active(rank) || peers_[rank].broken) continue;
      const bool awaited =
          std::any_of(receiving_.begin(), receiving_.end(),
                      [&](const Receiving& one) { return !one.from || *one.from == rank; });
      const bool attended = attention == Attention::everybody ||
                            (attention == Attention::acquainted && peers_[rank].is_acquainted());
      if (!peers_[rank].stream && !awaited && !attended) continue;
      try {
        stream(rank).push();
        while (read(rank)) arrived = true;
      } catch (const InternalError& error) {
        break_off(rank, error);
      }
      moved = stream(rank).take_moved() || moved;
    }
    if (arrived) match();
  }
  check_deadlines(now);
  return moved;
}

bool PointToPoint::read(uint32_t from) {
  const FrameHeader* header = stream(from).header();
  if (header == nullptr) return false;
  const FrameHeader frame = *header;
  if (!take(from, frame)) return false;
  stream(from).finish();
  return true;
}

bool PointToPoint::take(uint32_t from, const FrameHeader& header) {
  Peer& peer = peers_[from];
  switch (header.kind) {
    case FrameKind::eager:
      return take_eager(from, header);
    case FrameKind::content:
      return take_content(from, header);
    case FrameKind::offer:
      if (peer.arrived.contains(header.sequence)) {
        throw InternalError(fmt::format("message {} was offered twice", header.sequence));
      }
      if (peer.has(header.sequence)) {
        post(from, FrameKind::received, header.sequence, nullptr, {});
      } else {
        peer.arrived[header.sequence] = {.tag = header.signature.lengths,
                                         .type = header.signature.type,
                                         .bytes = header.signature.elements,
                                         .eager = false,
                                         .stage = Stage::here,
                                         .copy = {},
                                         .order = ++arrivals_};
      }
      return true;
    case FrameKind::accept:
      take_accept(from, header.sequence);
      return true;
    case FrameKind::received:
      take_received(from, header.sequence);
      return true;
    case FrameKind::unfit:
      take_unfit(from, header);
      return true;
    case FrameKind::withdrawn:
      take_withdrawn(from, header.sequence);
      return true;
    case FrameKind::data:
    case FrameKind::here:
    case FrameKind::refusal:
    case FrameKind::broken:
      break;
  }
  throw InternalError("a frame of a collective arrived among messages");
}

bool PointToPoint::take_eager(uint32_t from, const FrameHeader& header) {
  Peer& peer = peers_[from];
  if (header.bytes > eager_max) {
    throw InternalError(fmt::format("{} bytes came without an offer, where at most {} may",
                                    header.bytes, eager_max));
  }
  peer.eager.resize(header.bytes);
  while (peer.got < header.bytes) {
    const size_t got = stream(from).read(std::span(peer.eager).subspan(peer.got));
    if (got == 0) return false;
    peer.got += got;
  }
  peer.got = 0;
  if (!peer.has(header.sequence)) {
    // If no receive has come for much of what is here, this one counts as an offer: its sender, who
    // has a copy, sends it again once a receive asks for it.
    const bool keeps = peer.kept + kept_bytes(header.bytes) <= eager_bytes_max;
    peer.arrived[header.sequence] = {.tag = header.signature.lengths,
                                     .type = header.signature.type,
                                     .bytes = header.bytes,
                                     .eager = keeps,
                                     .stage = Stage::here,
                                     .copy = {},
                                     .order = ++arrivals_};
    if (!keeps) return true;
    peer.note(header.sequence);
    peer.arrived[header.sequence].copy = std::move(peer.eager);
    peer.kept += kept_bytes(header.bytes);
  }
  post(from, FrameKind::received, header.sequence, nullptr, {});
  return true;
}

PointToPoint::Receiving* PointToPoint::find_accepted(uint32_t from, Number number) {
  for (Receiving& receiving : receiving_) {
    if (receiving.accepted == std::pair(from, number)) return &receiving;
  }
  return nullptr;
}

void PointToPoint::let_go(const Receiving& receiving) {
  if (!receiving.accepted) return;
  const auto [from, number] = *receiving.accepted;
  peers_[from].arrived.at(number).stage = Stage::thrown_away;
}

bool PointToPoint::take_content(uint32_t from, const FrameHeader& header) {
  Peer& peer = peers_[from];
  const auto offer = peer.arrived.find(header.sequence);
  if (offer == peer.arrived.end() || offer->second.eager || offer->second.bytes != header.bytes ||
      offer->second.stage == Stage::here) {
    throw InternalError(fmt::format("{} bytes of message {} came, which no receive has accepted",
                                    header.bytes, header.sequence));
  }
  Receiving* const receiving = find_accepted(from, header.sequence);
  if (receiving == nullptr) {
    // The receive is over, so its memory belongs to the caller again.
    if (!stream(from).discard()) return false;
    peer.got = 0;
    offer->second.stage = Stage::here;
    return true;
  }
  while (peer.got < header.bytes) {
    const size_t got = stream(from).read(receiving->into.subspan(peer.got));
    if (got == 0) return false;
    peer.got += got;
  }
  peer.got = 0;
  peer.arrived.erase(offer);
  peer.note(header.sequence);
  post(from, FrameKind::received, header.sequence, nullptr, {});
  receiving->operation->peer = from;
  finish(receiving->operation, nullptr);
  receiving_.remove_if([&](const Receiving& one) { return &one == receiving; });
  return true;
}

void PointToPoint::take_received(uint32_t from, Number number) {
  Peer& peer = peers_[from];
  const auto found = peer.sending.find(number);
  if (found == peer.sending.end()) return;  // a repeated acknowledgement
  if (found->second.eager) peer.eager_bytes -= kept_bytes(found->second.bytes());
  if (found->second.operation) finish(found->second.operation, nullptr);
  peer.sending.erase(found);
}

void PointToPoint::take_accept(uint32_t from, Number number) {
  const auto found = peers_[from].sending.find(number);
  if (found == peers_[from].sending.end()) {
    post(from, FrameKind::withdrawn, number, nullptr, {});
    return;
  }
  Sending& sending = found->second;
  sending.flowing = true;
  post(from, FrameKind::content, number, &sending,
       sending.eager ? std::span<const std::byte>(sending.copy) : sending.content);
}

void PointToPoint::take_unfit(uint32_t from, const FrameHeader& header) {
  Peer& peer = peers_[from];
  const auto found = peer.sending.find(header.sequence);
  if (found == peer.sending.end()) return;
  const Sending& sending = found->second;
  if (sending.operation) {
    finish(sending.operation,
           std::make_exception_ptr(InvalidArgument(
               fmt::format("send with tag {} of group \"{}\"", sending.tag, identity_.name),
               fmt::format("{} of {} bytes, which that rank receives",
                           tokenyard::name_of(header.signature.type), header.signature.elements),
               fmt::format("{} of {} bytes", tokenyard::name_of(sending.type), sending.bytes()),
               from)));
  }
  if (sending.eager) peer.eager_bytes -= kept_bytes(sending.bytes());
  peer.sending.erase(found);
}

void PointToPoint::take_withdrawn(uint32_t from, Number number) {
  peers_[from].note(number);  // it will not be sent again
  peers_[from].arrived.erase(number);
  if (Receiving* receiving = find_accepted(from, number)) receiving->accepted.reset();
}

std::optional<std::pair<uint32_t, PointToPoint::Number>> PointToPoint::find_arrived(
    const Receiving& receiving) const {
  std::optional<std::pair<uint32_t, Number>> found;
  uint64_t earliest = ~uint64_t{0};
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (receiving.from && *receiving.from != rank) continue;
    for (const auto& [number, arrived] : peers_[rank].arrived) {
      if (arrived.tag != receiving.operation->tag || arrived.stage == Stage::accepted) continue;
      if (arrived.stage == Stage::here && arrived.order < earliest) {
        earliest = arrived.order;
        found = {rank, number};
      }
      break;  // later entries were sent later
    }
  }
  return found;
}

void PointToPoint::match() {
  for (auto receiving = receiving_.begin(); receiving != receiving_.end();) {
    const auto found = receiving->accepted ? std::nullopt : find_arrived(*receiving);
    const bool over = found && give(*receiving, found->first, found->second);
    receiving = over ? receiving_.erase(receiving) : std::next(receiving);
  }
}

bool PointToPoint::give(Receiving& receiving, uint32_t from, Number number) {
  Peer& peer = peers_[from];
  const auto found = peer.arrived.find(number);
  const bool fits = found->second.bytes == receiving.into.size() &&
                    found->second.type == receiving.operation->type;
  if (!found->second.eager && fits) {
    if (context_.frozen) return false;
    found->second.stage = Stage::accepted;
    receiving.accepted = {from, number};
    post(from, FrameKind::accept, number, nullptr, {});
    return false;
  }
  const Arrived arrived = std::move(found->second);
  peer.arrived.erase(found);
  if (arrived.eager) peer.kept -= kept_bytes(arrived.bytes);
  receiving.operation->peer = from;
  if (!fits) {
    finish(receiving.operation,
           std::make_exception_ptr(InvalidArgument(
               fmt::format("receive with tag {} of group \"{}\"", arrived.tag, identity_.name),
               fmt::format("{} of {} bytes, which that rank sends",
                           tokenyard::name_of(arrived.type), arrived.bytes),
               fmt::format("{} of {} bytes", tokenyard::name_of(receiving.operation->type),
                           receiving.into.size()),
               from)));
    if (!arrived.eager && !context_.frozen) {
      peer.note(number);
      Sending wanted;
      wanted.type = receiving.operation->type;
      wanted.content = receiving.into;
      post(from, FrameKind::unfit, number, &wanted, {});
    }
    return true;
  }
  std::copy(arrived.copy.begin(), arrived.copy.end(), receiving.into.begin());
  finish(receiving.operation, nullptr);
  return true;
}

}  // namespace tokenyard::collectives
