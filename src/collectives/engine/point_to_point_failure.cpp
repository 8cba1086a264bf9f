// Messages when time runs out, ranks are lost or an epoch ends.

#include <fmt/format.h>

#include <algorithm>

#include "collectives/engine/point_to_point.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

bool PointToPoint::idle() const {
  return receiving_.empty() && std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
           const bool awaited =
               std::any_of(peer.sending.begin(), peer.sending.end(),
                           [](const auto& one) { return one.second.operation != nullptr; });
           const bool leaves = leaving_ && !peer.sending.empty();
           return !awaited && !leaves && (!peer.stream || peer.stream->drained());
         });
}

bool PointToPoint::has_acquaintances() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.is_acquainted(); });
}

bool PointToPoint::drained() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.sending.empty() && (!peer.stream || peer.stream->drained());
  });
}

std::optional<Slot> PointToPoint::unreceived_by() const {
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (!peers_[rank].sending.empty()) return identity_.slots[rank];
  }
  return std::nullopt;
}

void PointToPoint::begin_to_leave(const std::exception_ptr& why) {
  leaving_ = why;
  for (Receiving& receiving : receiving_) {
    let_go(receiving);
    finish(receiving.operation, why);
  }
  receiving_.clear();
}

std::optional<Instant> PointToPoint::next_deadline() const {
  std::optional<Instant> next;
  const auto look = [&](const std::shared_ptr<MessageOperation>& operation) {
    if (operation && (!next || operation->deadline < *next)) next = operation->deadline;
  };
  for (const Receiving& receiving : receiving_) look(receiving.operation);
  for (const Peer& peer : peers_) {
    for (const auto& [number, sending] : peer.sending) look(sending.operation);
  }
  return next;
}

uint64_t PointToPoint::bytes_sent() const {
  uint64_t bytes = bytes_sent_before_;
  for (const Peer& peer : peers_) bytes += peer.stream ? peer.stream->bytes_sent() : 0;
  return bytes;
}

std::exception_ptr PointToPoint::timeout_error(const MessageOperation& operation, const char* what,
                                               std::optional<uint32_t> peer, Instant now) const {
  return std::make_exception_ptr(PeerTimeout(
      {.rank = peer.value_or(identity_.self),
       .phase = fmt::format("{}{} with tag {} of group \"{}\"", what, peer ? "" : " from any rank",
                            operation.tag, identity_.name),
       .expected = 1,
       .seen = 0,
       .waited_s = std::chrono::duration<double>(now - operation.called).count()}));
}

std::exception_ptr PointToPoint::lost_error(const char* what, uint32_t peer) const {
  return std::make_exception_ptr(
      OperationAborted(what, peers_[peer].last_number, context_.lost_in(), {peer}));
}

void PointToPoint::check_deadlines(Instant now) {
  for (auto receiving = receiving_.begin(); receiving != receiving_.end();) {
    const MessageOperation& operation = *receiving->operation;
    if (now < operation.deadline) {
      ++receiving;
      continue;
    }
    let_go(*receiving);
    finish(receiving->operation, timeout_error(operation, "receive", receiving->from, now));
    receiving = receiving_.erase(receiving);
  }
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    for (auto entry = peer.sending.begin(); entry != peer.sending.end();) {
      Sending& sending = entry->second;
      if (!sending.operation || now < sending.operation->deadline) {
        ++entry;
        continue;
      }
      // Posted content is read from the caller's memory until all of it is sent; from now on it is
      // read from a copy.
      if (sending.flowing && peer.stream) peer.stream->keep_payloads();
      finish(sending.operation, timeout_error(*sending.operation, "send", rank, now));
      entry = peer.sending.erase(entry);
    }
  }
}

void PointToPoint::extend(uint32_t slots) {
  while (identity_.slots.size() < slots) {
    identity_.slots.push_back(static_cast<Slot>(identity_.slots.size()));
    peers_.emplace_back();
  }
}

void PointToPoint::install(const Verdict& verdict, Instant) {
  if (failed_) return;
  for (Receiving& receiving : receiving_) receiving.accepted.reset();
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (peer.stream) bytes_sent_before_ += peer.stream->bytes_sent();
    peer.stream.reset();
    peer.got = 0;
    peer.broken = nullptr;
    // Offers are sent again; received messages stay.
    std::erase_if(peer.arrived, [](const auto& entry) { return !entry.second.eager; });
    const auto member = verdict.next.at(identity_.slots[rank]);
    if (!member) {
      if (peer.incarnation != 0) lose(rank);
      continue;
    }
    if (member->incarnation != peer.incarnation) renew(rank, *member);
    for (auto& [number, sending] : peer.sending) say(rank, sending);
  }
  match();
}

void PointToPoint::lose(uint32_t rank) {
  Peer& peer = peers_[rank];
  if (context_.on_failure == OnFailure::retry) return;  // kept for its successor
  for (auto& [number, sending] : peer.sending) {
    if (sending.operation) finish(sending.operation, lost_error("send", rank));
  }
  peer.sending.clear();
  peer.eager_bytes = 0;
  for (auto receiving = receiving_.begin(); receiving != receiving_.end();) {
    const bool any = !receiving->from && context_.on_failure == OnFailure::raise;
    if (any || receiving->from == rank) {
      finish(receiving->operation, lost_error("receive", rank));
      receiving = receiving_.erase(receiving);
    } else {
      ++receiving;
    }
  }
}

void PointToPoint::break_off(uint32_t rank, const InternalError& error) {
  Peer& peer = peers_[rank];
  peer.broken = std::make_exception_ptr(InternalError(
      fmt::format("messages with rank {} of group \"{}\" have ended until ranks recover: {}", rank,
                  identity_.name, error.what())));
  for (auto entry = peer.sending.begin(); entry != peer.sending.end();) {
    // Small messages have no caller that waits; they are sent again in the next epoch.
    if (!entry->second.operation) {
      ++entry;
      continue;
    }
    if (entry->second.flowing) peer.stream->keep_payloads();
    finish(entry->second.operation, peer.broken);
    entry = peer.sending.erase(entry);
  }
  for (auto receiving = receiving_.begin(); receiving != receiving_.end();) {
    if (receiving->accepted && receiving->accepted->first == rank) receiving->accepted.reset();
    if (receiving->from != rank) {
      ++receiving;
      continue;
    }
    finish(receiving->operation, peer.broken);
    receiving = receiving_.erase(receiving);
  }
  // Messages that have arrived whole can still be received.
  std::erase_if(peer.arrived, [](const auto& entry) { return !entry.second.eager; });
}

void PointToPoint::renew(uint32_t rank, const Member& member) {
  Peer& peer = peers_[rank];
  // The slot has a new process, which has received nothing; it gets the messages whose senders
  // still wait. Unreceived messages of the old process are lost with it.
  std::map<Number, Sending> before;
  before.swap(peer.sending);
  if (peer.incarnation != 0 && context_.on_failure != OnFailure::retry) {
    peer.sending = std::move(before);
    lose(rank);
    before.clear();
  }
  Peer fresh;
  fresh.incarnation = member.incarnation;
  for (auto& [number, sending] : before) {
    if (!sending.operation) continue;
    sending.number = ++fresh.last_number;
    fresh.sending.emplace(sending.number, std::move(sending));
  }
  peer = std::move(fresh);
}

void PointToPoint::fail(const std::exception_ptr& why) {
  if (failed_) return;
  failed_ = why;
  for (Receiving& receiving : receiving_) finish(receiving.operation, why);
  receiving_.clear();
  for (Peer& peer : peers_) {
    if (peer.stream) bytes_sent_before_ += peer.stream->bytes_sent();
    peer.stream.reset();
    for (auto& [number, sending] : peer.sending) {
      if (sending.operation) finish(sending.operation, why);
    }
    peer.sending.clear();
  }
}

}  // namespace tokenyard::collectives
